// Which heads to retain and which to aggregate, decided on a sample of the row's keys. Nothing here is a proof:
// whatever is chosen gives a valid bound (T1-T6); a bad choice costs survivors only.
#pragma once

#include <span>

#include "certificate/form.hpp"

namespace dosa::certificate {

struct HeadOrder {
  int positives = 0, negatives = 0;
  int order[kMaxHeads];  ///< positives by falling w |q|, then negatives by falling |w| |q| min(p, 1-p)
};

/// Measures a sample once for a row, then answers for any number of retained heads.
class SampleModel {
 public:
  /// Keys with a scale above `scale_limit` have no bound. `per_norm`: what a unit of |k| takes a score's lower bound
  /// below the score, for the threshold is one. `memory`: floats(keys) floats.
  SampleModel(const RowInput& input, const RowFacts& facts, float scale_limit, double per_norm, float* memory) noexcept;
  [[nodiscard]] static std::size_t floats(int keys) noexcept { return 8 * static_cast<std::size_t>(keys) + 64; }

  [[nodiscard]] const HeadOrder& heads() const noexcept { return heads_; }
  /// Random keys: without any, nothing is predicted and every omitted negative head is a member.
  [[nodiscard]] int random_keys() const noexcept { return random_; }

  /// Chooses the members of up to `aggregates` rows for order[0..retained-1] retained, and predicts the share of keys
  /// whose bound reaches the sample's K/n quantile with the first 0, 1, .. `aggregates` of them. `per_norm`: allowance
  /// for model and arithmetic a unit of |k|.
  void measure(int retained, const Projection& rest, double per_norm, int aggregates, double* survival_of) noexcept;

  /// Share of the random keys whose bound, with that many aggregates of the last measure(), reaches a score.
  [[nodiscard]] double reaching(float score, int aggregates) const noexcept;

  /// Members of aggregate a of the last measure(), by head.
  [[nodiscard]] const bool* members(int a) const noexcept { return members_[a]; }

 private:
  void measure_sample(float per_norm) noexcept;
  void order_heads() noexcept;
  [[nodiscard]] const float* dots(int head) const noexcept {
    return input_.sample.dots + static_cast<std::ptrdiff_t>(head) * input_.sample.stride + input_.sample.likely_winners;
  }
  [[nodiscard]] double survival(const float* aggregate) const noexcept;

  const RowInput& input_;
  const RowFacts& facts_;
  HeadOrder heads_;
  float scale_limit_;
  int random_ = 0;  ///< random keys, lanes [likely_winners, keys) of the sample
  bool winner_member_[kMaxHeads];
  bool members_[kMaxAggregates][kMaxHeads];
  float top_ = 0;               ///< score of the sampled key that stands for the K-th
  float* score_ = nullptr;      ///< [random]
  float* threshold_ = nullptr;  ///< tau / scale
  float* inverse_ = nullptr;    ///< 1 / (2 band / scale)
  float* bound_ = nullptr;
  float* all_ = nullptr;  ///< the winners' aggregate with no negative head retained
  float* first_ = nullptr;
  float* second_ = nullptr;
  float* hard_ = nullptr;  ///< 1 for keys that the first aggregate does not reject though they are no winners
};

}  // namespace dosa::certificate
