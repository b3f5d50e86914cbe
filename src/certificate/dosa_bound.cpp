#include "certificate/dosa_bound.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "certificate/assemble.hpp"
#include "certificate/choice.hpp"
#include "certificate/outward.hpp"

namespace dosa::certificate {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Hands out pieces of the caller's scratch.
class Carver {
 public:
  explicit Carver(std::span<std::byte> memory) : next_(memory.data()) {
    const auto address = reinterpret_cast<std::uintptr_t>(next_);
    next_ += (kAlign - address % kAlign) % kAlign;
  }
  template <typename T>
  T* take(std::size_t count) {
    T* memory = place<T>(count);
    std::uninitialized_default_construct_n(memory, count);
    return memory;
  }
  /// What is there stays as it is.
  template <typename T>
  T* place(std::size_t count) {
    T* memory = reinterpret_cast<T*>(next_);
    next_ += aligned(count * sizeof(T));
    return memory;
  }

 private:
  std::byte* next_;
};

struct MeanDots {
  double dot[kMaxHeads], error[kMaxHeads];
  bool valid = false;
};

/// What integers of a byte lose, as a share of the root of the summed squares of the retained heads' w |q|: 0.010 to
/// 0.014 on the traces (T11 with roundings as measured: 0.0033 to 0.0053 of |q| and |k|).
constexpr double kNarrowShare = 0.012;

int narrow_blocks(int retained, int aggregates, const cpu::NarrowCosts& costs) {
  return (retained + 2 * aggregates + costs.block_rows - 1) / costs.block_rows;
}

/// q . mu for the heads in `order` (positives), with bounds of the rounding.
void mean_dots(const RowFacts& facts, const float* values, const int* order, int count, const float* mean,
               const cpu::RowLoops& loops, MeanDots& out) {
  double square = 0;
  for (int d = 0; d < facts.dim; ++d) square += static_cast<double>(mean[d]) * static_cast<double>(mean[d]);
  const double norm = std::sqrt(square);
  out.valid = norm < 0x1p20;  // false for NaN: a mean that no E4M3 keys have is not used
  if (!out.valid) return;
  for (int i = 0; i < count; ++i) {
    const float* q = values + static_cast<std::ptrdiff_t>(order[i]) * facts.dim;
    out.dot[i] = loops.exact_dot(q, mean, facts.dim);  // here not exact: mu is arbitrary
    out.error[i] = facts.norm[order[i]] * norm * 0x1p-43;
  }
}

Measured& measure_at(Carver& carve, const RowInput& input) {
  auto* const place = carve.place<Measured>(1);
  auto* const values =
      carve.place<float>(static_cast<std::size_t>(input.row.heads) * static_cast<std::size_t>(input.row.head_dim));
  if (place == input.measured) return *place;
  Measured& measured = *std::construct_at(place);
  measured.values = values;
  read_row(input.row, input.model, *input.loops, values, measured.facts);
  if (measured.facts.finite) measured.model = model_error(input.model, measured.facts, values, *input.loops);
  return measured;
}

}  // namespace

const Measured* measure(const RowInput& input, std::span<std::byte> scratch) {
  Carver carve(scratch);
  return &measure_at(carve, input);
}

std::size_t scratch_bytes(int heads, int head_dim, int sample_keys) {
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(head_dim);
  return kAlign + aligned(sizeof(Measured)) + aligned(h * d * sizeof(float)) + aligned(h * h * sizeof(double)) +
         aligned(SampleModel::floats(sample_keys) * sizeof(float)) + aligned(sizeof(RealBound)) +
         aligned(sizeof(MeanDots));
}

bool dense_form(const RowInput& input, float* rows, float* coef, cpu::FormSpec& spec, const NarrowTarget& target) {
  Measured own;
  const Measured* measured = input.measured;
  if (measured == nullptr) {
    own.values = rows;
    read_row(input.row, input.model, *input.loops, rows, own.facts);
    if (own.facts.finite) own.model = model_error(input.model, own.facts, rows, *input.loops);
    measured = &own;
  }
  const RowFacts& facts = measured->facts;
  if (!facts.finite) return false;
  RealBound bound;
  bound.retained = facts.heads;
  for (int h = 0; h < facts.heads; ++h) {
    bound.head[h] = h;
    bound.coef[h] = facts.weight[h];
  }
  return make_form(bound, facts, measured->model, input.arithmetic, cpu::feature_count(input.model, facts.dim), nullptr,
                   measured->values, rows, coef, spec, target, *input.loops);
}

Assembly assemble(const RowInput& input, std::span<std::byte> scratch) {
  Assembly assembly;
  Choice& choice = assembly.choice;
  Carver carve(scratch);
  const int heads = input.row.heads, dim = input.row.head_dim;
  Measured& measured = measure_at(carve, input);
  RowFacts& facts = measured.facts;
  float* const values = measured.values;
  assembly.facts = &facts;
  assembly.values = values;
  if (!facts.finite) return assembly;
  assembly.model = measured.model;
  const ModelError& model = assembly.model;
  if (!model.finite) return assembly;

  auto* cache = carve.take<double>(static_cast<std::size_t>(heads) * static_cast<std::size_t>(heads));
  // What a key of typical shape pays for the model: prefix norms grow like the square root of the prefix, the largest
  // power of two of a chunk is about 2.5 times the root mean square of a code.
  double per_norm = model.feature[cpu::kNorm];
  for (int h = 0; h < heads; ++h) {
    per_norm += std::fabs(facts.weight[h]) * facts.norm[h] *
                (input.arithmetic.dot_error + (heads + 16) * input.arithmetic.epilogue_error);
  }
  if (input.model == ScoreModel::sm90) {
    const int chunks = dim / 32;
    for (int s = 0; s < chunks; ++s) {
      per_norm += model.feature[cpu::kModel + 2 * s] * 2.5 / std::sqrt(static_cast<double>(dim)) +
                  model.feature[cpu::kModel + 2 * s + 1] * std::sqrt(static_cast<double>(s) / chunks);
    }
  }
  SampleModel sample(input, facts, model.scale_limit, per_norm,
                     carve.take<float>(SampleModel::floats(input.sample.keys)));
  auto& bound = *carve.take<RealBound>(1);
  auto& mean = *carve.take<MeanDots>(1);
  bound = RealBound{};
  mean.valid = false;
  const HeadOrder& order = sample.heads();
  const int positives = order.positives, active = positives + order.negatives;
  Gram gram(facts, values, order.order, positives, *input.loops, cache);

  const bool narrow = wants_narrow(input);
  const bool use_mean = input.mean != nullptr && input.ablation.centred && !narrow;
  const auto rest_for = [&](int retained) {
    if (retained >= positives) return Projection{};
    if (use_mean && !mean.valid) mean_dots(facts, values, order.order, positives, input.mean, *input.loops, mean);
    return project(facts, order.order, retained, gram, mean.valid ? mean.dot : nullptr,
                   mean.valid ? mean.error : nullptr, input.ablation);
  };

  const int most = input.ablation.aggregate ? (input.ablation.second_aggregate ? 2 : 1) : 0;
  double survival[kMaxAggregates + 1];
  int retained = 0, aggregates = 0;
  Projection rest;
  // Measures one budget; keeps it where it is the cheapest so far.
  const auto consider = [&](int r) {
    const Projection candidate = rest_for(r);
    const int omitted_negatives = active - std::max(r, positives);
    const int least = candidate.half ? 1 : 0;
    const int most_here = omitted_negatives > 0 ? std::max(most, least) : least;
    // Aggregate rows are stored with an error that grows with their heads, half of the omitted positive ones among
    // them.
    double aggregated = 0;
    for (int i = r; i < active; ++i) {
      const int h = order.order[i];
      const double share = i >= positives ? 1 : candidate.half ? 0.5 : 0;
      aggregated += share * std::fabs(facts.weight[h]) * facts.norm[h];
    }
    double retained_square = 0;
    for (int i = 0; i < std::min(r, active); ++i) {
      const double size = facts.weight[order.order[i]] * facts.norm[order.order[i]];
      retained_square += size * size;
    }
    const double stored = narrow ? kNarrowShare * std::sqrt(retained_square) : input.arithmetic.row_error * aggregated;
    sample.measure(r, candidate, per_norm + stored, most_here, survival);
    double best = INFINITY;
    for (int a = std::min(most_here, std::max(least, most > 0 ? 1 : 0)); a <= most_here; ++a) {
      const double screen =
          narrow ? narrow_blocks(r, a, input.narrow) * input.narrow.block : (r + a) / static_cast<double>(heads);
      const double cost = screen + input.refine_cost * survival[a];
      best = std::min(best, cost);
      if (!(cost < choice.cost)) continue;
      choice.cost = cost;
      choice.screen = screen;
      choice.survival = survival[a];
      choice.kept = sample.reaching(input.floor, a);
      retained = r;
      aggregates = a;
      rest = candidate;
      bound.aggregates = a;
      for (int row = 0; row < a; ++row) {
        for (int h = 0; h < heads; ++h) {
          bound.share[row][h] = most > 0 && sample.members(row)[h] ? -facts.weight[h] : 0;
        }
      }
    }
    return best;
  };

  choice.cost = INFINITY;
  if (input.retained_heads > 0 || sample.random_keys() < 16) {
    consider(std::min(active, input.retained_heads > 0 ? input.retained_heads : positives));
  } else if (narrow) {
    // A block that is not full costs as much as a full one: each number of aggregates has its r that fills it.
    for (int full = input.narrow.block_rows;; full += input.narrow.block_rows) {
      if (full < std::min(active, positives - 8)) continue;
      for (int a = 0; a <= most; ++a) consider(std::min(active, full - 2 * a));
      if (full >= active || full >= positives + input.narrow.block_rows) break;
    }
  } else {
    // The cost falls and then rises with r up to noise: coarse steps first, then the neighbours of the best.
    const int first = std::max(positives > 0 ? 1 : 0, std::min(active, positives - 8)),
              last = std::min(active, positives + 4);
    constexpr int kStep = 3;
    for (int r = std::min(active, std::max(first, positives % kStep)); r <= last; r += kStep) consider(r);
    const int middle = retained;
    for (const int r : {middle - 1, middle + 1}) {
      if (r >= first && r <= last) consider(r);
    }
  }

  bound.retained = retained;
  for (int i = 0; i < retained; ++i) {
    bound.head[i] = order.order[i];
    bound.coef[i] = facts.weight[order.order[i]] + (i < positives ? rest.fold[i] : 0);
    if (i < positives && rest.fold[i] > 0) bound.coef[i] *= kInflate;
  }
  for (int row = 0; row < aggregates; ++row) {
    for (int i = 0; i < positives; ++i) bound.share[row][order.order[i]] = -rest.linear[i];
  }
  bound.rest = rest;
  bound.centred = mean.valid;
  bound.clamp = !rest.half && !input.ablation.absolute_form;
  assembly.bound = &bound;
  choice.finite = true;
  choice.retained = retained;
  choice.aggregates = aggregates;
  return assembly;
}

Choice dosa_form(const RowInput& input, std::span<std::byte> scratch, float* rows, float* coef, cpu::FormSpec& spec) {
  const Assembly assembly = assemble(input, scratch);
  if (!assembly.choice.finite) return Choice{};
  const int features = cpu::feature_count(input.model, input.row.head_dim);
  const NarrowTarget target = wants_narrow(input) ? input.narrow_target : NarrowTarget{};
  if (!make_form(*assembly.bound, *assembly.facts, assembly.model, input.arithmetic, features, input.mean,
                 assembly.values, rows, coef, spec, target, *input.loops)) {
    return Choice{};
  }
  return assembly.choice;
}

bool may_profit(const ScoreRow& row, std::int64_t keys, std::int64_t wanted, const cpu::Costs& costs) {
  int positives = 0;
  for (int h = 0; h < row.heads; ++h) positives += row.weights[h * row.weight_stride] > 0 ? 1 : 0;
  // On every trace the best r kept three quarters of the positive heads or more, and a third more keys than the winners
  // survived. The margin pays for the sample itself, whose size hardly grows with the window.
  constexpr double kKeptPositives = 0.75, kSurvivorsPerWinner = 1.3, kSampling = 0.15, kSampledWindow = 65536;
  const auto visible = static_cast<double>(keys);
  const double winners = static_cast<double>(wanted) / visible;
  const double worth = 1 - kSampling * std::min(1.0, kSampledWindow / visible);
  const int aggregates = positives < row.heads ? 1 : 0;
  const double rows = std::max(1.0, kKeptPositives * positives) + aggregates;
  // A row that leaves out positive heads for the sake of a block pays with survivors what it saves, unless winners are
  // few: of 64K keys one in 32 wins, of 256K one in 128.
  constexpr double kFewWinners = 0.01;
  const int kept = winners < kFewWinners ? static_cast<int>(kKeptPositives * positives) : positives;
  const double screen = costs.narrow.block_rows > 0
                            ? narrow_blocks(std::max(1, kept), aggregates, costs.narrow) * costs.narrow.block
                            : rows / row.heads;
  return screen + costs.refine * kSurvivorsPerWinner * winners + costs.key + costs.row / visible < worth;
}

}  // namespace dosa::certificate
