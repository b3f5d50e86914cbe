#include "certificate/choice.hpp"

#include <algorithm>
#include <cmath>

namespace dosa::certificate {
namespace {

/// Share of the deviation over which a sampled key counts as partly alive: a count of 256 keys is too coarse to compare
/// budgets by.
constexpr double kBand = 0.1;

/// z with P(normal > z) = upper_share, by bisection: called once a row.
double normal_quantile(double upper_share) noexcept {
  double low = -8, high = 8;
  for (int i = 0; i < 30; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > upper_share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// A plain loop over contiguous floats: compilers turn it into vectors.
int count_positive(const float* dots, int count) noexcept {
  int positive = 0;
  for (int s = 0; s < count; ++s) positive += dots[s] > 0 ? 1 : 0;
  return positive;
}

}  // namespace

SampleModel::SampleModel(const RowInput& input, const RowFacts& facts, float scale_limit, double per_norm,
                         float* memory) noexcept
    : input_(input), facts_(facts), scale_limit_(scale_limit) {
  random_ = input.sample.keys - input.sample.likely_winners;
  for (float** piece : {&score_, &threshold_, &inverse_, &bound_, &all_, &first_, &second_, &hard_}) {
    *piece = memory;
    memory += input.sample.keys;
  }
  if (random_ > 0) measure_sample(static_cast<float>(per_norm));
  order_heads();
}

void SampleModel::measure_sample(float per_norm) noexcept {
  const Sample& sample = input_.sample;
  std::fill_n(score_, random_, 0.0F);
  for (int h = 0; h < facts_.heads; ++h) {
    if (facts_.weight[h] != 0) input_.loops->add_relu(score_, dots(h), static_cast<float>(facts_.weight[h]), random_);
  }
  const float* scale = sample.scale + sample.likely_winners;
  input_.loops->add(score_, sample.norm + sample.likely_winners, -per_norm, random_);
  double sum = 0, squares = 0;
  for (int s = 0; s < random_; ++s) {
    score_[s] *= scale[s];
    const float value = score_[s];
    bound_[s] = value == value ? value : -INFINITY;  // poison ranks last
    if (std::fabs(value) < INFINITY) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  const double mean = sum / random_;
  const double deviation = std::sqrt(std::max(0.0, squares / random_ - mean * mean));
  // The sample's own quantile where at least 8 keys lie above it; else a normal tail continues from the 8th largest.
  const double share = std::min(1.0, std::max(sample.winners, 0.0));
  const int rank = std::clamp(static_cast<int>(std::lround(share * random_)), std::min(random_, 8), random_);
  std::nth_element(bound_, bound_ + (rank - 1), bound_ + random_, [](float a, float b) { return a > b; });
  top_ = bound_[rank - 1];
  float tau = top_;
  const double own = static_cast<double>(rank) / random_;
  const float close = std::fabs(top_) * 1e-5F;
  const auto equal = std::count_if(bound_, bound_ + random_, [&](float v) { return std::fabs(v - top_) <= close; });
  // A tail is continued only where there is one: a plateau ends where it ends.
  if (share > 0 && share < own * 0.95 && own < 1 && equal <= 4) {
    tau += static_cast<float>(deviation * (normal_quantile(share) - normal_quantile(own)));
  }
  // On a plateau the deviation may be zero; what rounds to the same score must not look different.
  const float band = std::max({static_cast<float>(kBand * deviation), std::fabs(tau) * 1e-5F, 1e-30F});
  for (int s = 0; s < random_; ++s) {
    const float key_scale = scale[s];
    if (!(std::fabs(tau) < INFINITY)) {
      threshold_[s] = -INFINITY;  // infinite scores: bounds overflow to +inf with them
      inverse_[s] = 1;
    } else if (key_scale > 0 && key_scale <= scale_limit_) {
      threshold_[s] = tau / key_scale;
      inverse_[s] = std::min(key_scale / (2 * band), 1e30F);
    } else {
      // The kernel has no bound for such a key: it survives. A scale of zero makes every bound zero.
      threshold_[s] = key_scale == 0 && tau > 0 ? INFINITY : -INFINITY;
      inverse_[s] = 1;
    }
  }
}

void SampleModel::order_heads() noexcept {
  const Sample& sample = input_.sample;
  const int seeds = sample.likely_winners;
  const bool use_seeds = seeds >= 16;
  if (!use_seeds && random_ > 0) {
    for (int s = 0; s < random_; ++s) hard_[s] = score_[s] >= top_ ? 1.0F : 0.0F;
  }
  double rank[kMaxHeads];
  std::fill_n(all_, std::max(random_, 0), 0.0F);
  for (int h = 0; h < facts_.heads; ++h) {
    const double size = std::fabs(facts_.weight[h]) * facts_.norm[h];
    rank[h] = size;
    winner_member_[h] = false;
    if (facts_.weight[h] > 0) heads_.order[heads_.positives++] = h;
    if (!(facts_.weight[h] < 0)) continue;
    // The aggregate gives up relu(x) - x of its members where x < 0 and relu(x) of the others, so over a set of keys it
    // gives up least where the heads with a positive sum are members. Of many likely winners the majority is the better
    // guide (measured: 0.003 to 0.005 of the dense dot products on three of five traces), of a handful the sum.
    double sum = 1;
    if (use_seeds) {
      sum = 2 * count_positive(dots(h) - seeds, seeds) - seeds;
    } else if (random_ > 0) {
      sum = static_cast<double>(input_.loops->weighted_sum(dots(h), hard_, random_));
    }
    winner_member_[h] = !(sum <= 0);
    if (random_ > 0) {
      // Heads whose sign the likely winners disagree about are worth a row of their own.
      const double p = use_seeds ? static_cast<double>(count_positive(dots(h) - seeds, seeds)) / seeds
                                 : static_cast<double>(count_positive(dots(h), random_)) / random_;
      rank[h] = size * std::min(p, 1 - p);
      if (winner_member_[h]) input_.loops->add(all_, dots(h), static_cast<float>(-facts_.weight[h]), random_);
    }
  }
  for (int h = 0; h < facts_.heads; ++h) {
    if (facts_.weight[h] < 0) heads_.order[heads_.positives + heads_.negatives++] = h;
  }
  const auto larger = [&](int a, int b) { return rank[a] > rank[b] || (rank[a] == rank[b] && a < b); };
  std::sort(heads_.order, heads_.order + heads_.positives, larger);
  std::sort(heads_.order + heads_.positives, heads_.order + heads_.positives + heads_.negatives, larger);
}

double SampleModel::survival(const float* aggregate) const noexcept {
  return static_cast<double>(input_.loops->survivors({bound_, threshold_, inverse_}, aggregate, random_)) / random_;
}

double SampleModel::reaching(float score, int aggregates) const noexcept {
  if (random_ <= 0) return 1;
  const float* const scale = input_.sample.scale + input_.sample.likely_winners;
  int reach = 0;
  for (int s = 0; s < random_; ++s) {
    const float aggregate = aggregates == 0 ? 0 : (aggregates == 1 ? first_ : second_)[s];
    const bool below = scale[s] * (bound_[s] - aggregate) < score && scale[s] >= 0 && scale[s] <= scale_limit_;
    reach += below ? 0 : 1;
  }
  return static_cast<double>(reach) / random_;
}

void SampleModel::measure(int retained, const Projection& rest, double per_norm, int aggregates,
                          double* survival_of) noexcept {
  const int active = heads_.positives + heads_.negatives;
  const int first_omitted = std::max(retained, heads_.positives);
  for (int a = 0; a < aggregates; ++a) {
    survival_of[a] = survival_of[a + 1] = 1;
    std::fill_n(members_[a], kMaxHeads, false);
    for (int i = first_omitted; i < active; ++i) {
      members_[a][heads_.order[i]] = a > 0 || winner_member_[heads_.order[i]];
    }
  }
  survival_of[0] = 1;
  if (random_ <= 0) return;

  const float* norm = input_.sample.norm + input_.sample.likely_winners;
  const bool centred = input_.ablation.centred && input_.mean != nullptr && input_.sample.centred != nullptr;
  const float* centre = centred ? input_.sample.centred + input_.sample.likely_winners : norm;
  const auto radius = static_cast<float>(rest.norm), mean = static_cast<float>(centred ? rest.mean : 0);
  const auto model = static_cast<float>(per_norm);
  for (int s = 0; s < random_; ++s) {
    bound_[s] = std::min(radius * norm[s], mean + radius * centre[s]) + model * norm[s];
  }
  for (int i = 0; i < std::max(retained, heads_.positives); ++i) {
    const int h = heads_.order[i];
    const double fold = i < heads_.positives ? rest.fold[i] : 0;
    if (i < retained) input_.loops->add_relu(bound_, dots(h), static_cast<float>(facts_.weight[h] + fold), random_);
    if (rest.linear[i] != 0) input_.loops->add(bound_, dots(h), static_cast<float>(rest.linear[i]), random_);
  }
  const float floor = rest.half || input_.ablation.absolute_form ? -INFINITY : 0.0F;
  std::fill_n(second_, random_, 0.0F);
  survival_of[0] = survival(second_);
  if (aggregates == 0) return;

  std::copy_n(all_, random_, first_);
  for (int i = heads_.positives; i < retained; ++i) {
    const int h = heads_.order[i];
    if (winner_member_[h]) input_.loops->add(first_, dots(h), static_cast<float>(facts_.weight[h]), random_);
  }
  for (int s = 0; s < random_; ++s) first_[s] = std::max(first_[s], floor);
  survival_of[1] = survival(first_);
  if (aggregates == 1) return;

  // The second aggregate serves the keys that the first leaves within two bands of the threshold or above it.
  int hard = 0;
  for (int s = 0; s < random_; ++s) {
    const int near = (bound_[s] - first_[s] - threshold_[s]) * inverse_[s] >= -1 ? 1 : 0;
    const int loser = score_[s] < top_ ? 1 : 0;
    hard_[s] = static_cast<float>(near & loser);
    hard += near & loser;
  }
  if (hard < 4) {
    for (int s = 0; s < random_; ++s) hard_[s] = score_[s] < top_ ? 1.0F : 0.0F;
  }
  for (int i = first_omitted; i < active; ++i) {
    const int h = heads_.order[i];
    members_[1][h] = !(input_.loops->weighted_sum(dots(h), hard_, random_) <= 0);
    if (members_[1][h]) input_.loops->add(second_, dots(h), static_cast<float>(-facts_.weight[h]), random_);
  }
  for (int s = 0; s < random_; ++s) second_[s] = std::max(second_[s], first_[s]);
  survival_of[2] = survival(second_);
}

}  // namespace dosa::certificate
