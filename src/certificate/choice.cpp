#include "certificate/choice.hpp"

#include <algorithm>
#include <cmath>

namespace dosa::certificate {
namespace {

/// Quantile of the standard normal, Acklam-style central/tail rational replaced by a bisection on erfc: called once a
/// row.
double normal_quantile(double upper_share) noexcept {
  double low = -8, high = 8;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > upper_share ? low : high) = middle;
  }
  return (low + high) / 2;
}

void add_relu(float* out, const float* dots, float factor, int count) noexcept {
  for (int s = 0; s < count; ++s) out[s] += factor * (dots[s] > 0 ? dots[s] : 0);
}

void add(float* out, const float* dots, float factor, int count) noexcept {
  for (int s = 0; s < count; ++s) out[s] += factor * dots[s];
}

int count_positive(const float* dots, int count) noexcept {
  int positive = 0;
  for (int s = 0; s < count; ++s) positive += dots[s] > 0 ? 1 : 0;
  return positive;
}

}  // namespace

SampleModel::SampleModel(const RowInput& input, const RowFacts& facts, float* memory) noexcept
    : input_(input), facts_(facts) {
  const Sample& sample = input.sample;
  random_ = sample.keys - sample.likely_winners;
  const auto size = static_cast<std::ptrdiff_t>(sample.keys);
  score_ = memory;
  threshold_ = score_ + size;
  inverse_ = threshold_ + size;
  bound_ = inverse_ + size;
  winners_ = bound_ + size;
  randoms_ = winners_ + size;
  order_heads();
}

void SampleModel::order_heads() noexcept {
  const Sample& sample = input_.sample;
  const int seeds = sample.likely_winners;
  double share_random[kMaxHeads], share_winners[kMaxHeads];
  const auto dots = [&](int h) { return sample.dots + static_cast<std::ptrdiff_t>(h) * sample.stride; };

  float tau = 0;
  if (random_ > 0) {
    std::fill_n(score_, random_, 0.0F);
    for (int h = 0; h < facts_.heads; ++h) {
      if (facts_.weight[h] != 0) add_relu(score_, dots(h) + seeds, static_cast<float>(facts_.weight[h]), random_);
    }
    const float* scale = sample.scale + seeds;
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
    // The quantile itself where enough sampled keys lie above it; else a normal tail continues from the 16th largest.
    const double share = std::min(1.0, std::max(sample.winners, 0.0));
    const int least = std::min(random_, 8);
    const int rank = std::clamp(static_cast<int>(share * random_ + 0.5), std::max(least, 1), random_);
    std::nth_element(bound_, bound_ + (rank - 1), bound_ + random_, [](float a, float b) { return a > b; });
    tau = bound_[rank - 1];
    const double own = static_cast<double>(rank) / random_;
    const float top = tau;
    if (share > 0 && share < own * 0.95 && own < 1) {
      tau += static_cast<float>(deviation * (normal_quantile(share) - normal_quantile(own)));
    }
    band_ = static_cast<float>(0.1 * deviation);
    for (int s = 0; s < random_; ++s) {
      const float inverse = scale[s] > 0 ? 1 / scale[s] : 0;  // a key that the kernel cannot bound always survives
      threshold_[s] = inverse > 0 ? tau * inverse : -INFINITY;
      inverse_[s] = scale[s] > 0 && band_ > 0 ? scale[s] / (2 * band_) : 1e30F;
    }
    // Likely winners: the seeds, else the top of the sample.
    if (seeds < 16) {
      int chosen = 0;
      int active[kMaxHeads] = {};
      for (int s = 0; s < random_; ++s) {
        if (!(score_[s] >= top)) continue;
        ++chosen;
        for (int h = 0; h < facts_.heads; ++h) active[h] += dots(h)[seeds + s] > 0 ? 1 : 0;
      }
      for (int h = 0; h < facts_.heads; ++h)
        share_winners[h] = chosen > 0 ? static_cast<double>(active[h]) / chosen : 0.5;
    }
  }
  for (int h = 0; h < facts_.heads; ++h) {
    share_random[h] = random_ > 0 && facts_.weight[h] < 0
                          ? static_cast<double>(count_positive(dots(h) + seeds, random_)) / random_
                          : 0.5;
    if (seeds >= 16)
      share_winners[h] = static_cast<double>(count_positive(dots(h), seeds)) / seeds;
    else if (random_ == 0)
      share_winners[h] = 0.5;
    heads_.by_random[h] = facts_.weight[h] < 0 && share_random[h] >= 0.5;
    heads_.by_winners[h] = facts_.weight[h] < 0 && share_winners[h] >= 0.5;
  }

  double rank[kMaxHeads];
  for (int h = 0; h < facts_.heads; ++h) {
    rank[h] = std::fabs(facts_.weight[h]) * facts_.norm[h];
    if (facts_.weight[h] > 0) heads_.order[heads_.positives++] = h;
  }
  for (int h = 0; h < facts_.heads; ++h) {
    if (!(facts_.weight[h] < 0)) continue;
    const double p = share_random[h];
    rank[h] *= std::min(p, 1 - p);
    heads_.order[heads_.positives + heads_.negatives++] = h;
  }
  const auto larger = [&](int a, int b) { return rank[a] > rank[b] || (rank[a] == rank[b] && a < b); };
  std::sort(heads_.order, heads_.order + heads_.positives, larger);
  std::sort(heads_.order + heads_.positives, heads_.order + heads_.positives + heads_.negatives, larger);
}

void SampleModel::start(int retained, const Projection& rest, double per_norm) noexcept {
  const Sample& sample = input_.sample;
  const int seeds = sample.likely_winners;
  const auto dots = [&](int h) { return sample.dots + static_cast<std::ptrdiff_t>(h) * sample.stride + seeds; };
  retained_ = retained;
  const auto radius = static_cast<float>(rest.norm), mean = static_cast<float>(rest.mean),
             centred = static_cast<float>(rest.centred);
  const auto model = static_cast<float>(per_norm);
  const float* norm = sample.norm + seeds;
  const float* centre = sample.centred == nullptr ? nullptr : sample.centred + seeds;
  for (int s = 0; s < random_; ++s) {
    float allowance = radius * norm[s];
    if (centre != nullptr && input_.ablation.centred) allowance = std::min(allowance, mean + centred * centre[s]);
    bound_[s] = allowance + model * norm[s];
  }
  std::fill_n(winners_, random_, 0.0F);
  std::fill_n(randoms_, random_, 0.0F);
  for (int i = 0; i < heads_.positives + heads_.negatives; ++i) {
    const int h = heads_.order[i];
    if (i < retained) {
      const double fold = i < heads_.positives ? rest.fold[i] : 0;
      add_relu(bound_, dots(h), static_cast<float>(facts_.weight[h] + fold), random_);
    } else if (i >= heads_.positives) {
      subtract_member(h, 1);
    }
  }
}

void SampleModel::subtract_member(int head, float factor) noexcept {
  const float* dots =
      input_.sample.dots + static_cast<std::ptrdiff_t>(head) * input_.sample.stride + input_.sample.likely_winners;
  const float weight = factor * static_cast<float>(-facts_.weight[head]);
  if (heads_.by_winners[head]) add(winners_, dots, weight, random_);
  if (heads_.by_random[head]) add(randoms_, dots, weight, random_);
}

void SampleModel::next() noexcept {
  const int h = heads_.order[retained_++];
  const float* dots =
      input_.sample.dots + static_cast<std::ptrdiff_t>(h) * input_.sample.stride + input_.sample.likely_winners;
  add_relu(bound_, dots, static_cast<float>(facts_.weight[h]), random_);
  if (facts_.weight[h] < 0) subtract_member(h, -1);
}

double SampleModel::survival(int aggregates) noexcept {
  if (random_ == 0) return 1;
  float alive = 0;
  const float floor = input_.ablation.absolute_form && aggregates > 0 ? -INFINITY : 0.0F;
  for (int s = 0; s < random_; ++s) {
    float aggregate = floor;
    if (aggregates > 0) aggregate = std::max(aggregate, winners_[s]);
    if (aggregates > 1) aggregate = std::max(aggregate, randoms_[s]);
    const float margin = (bound_[s] - aggregate - threshold_[s]) * inverse_[s] + 0.5F;
    alive += margin >= 1 ? 1.0F : (margin > 0 ? margin : 0.0F);
  }
  return static_cast<double>(alive) / random_;
}

}  // namespace dosa::certificate
