// Which heads to retain and which to aggregate, decided on a sample of the row's keys. Nothing here is a proof:
// whatever is chosen gives a valid bound (T1-T6); a bad choice costs survivors only.
#pragma once

#include <span>

#include "certificate/form.hpp"

namespace dosa::certificate {

struct HeadOrder {
  int positives = 0, negatives = 0;
  int order[kMaxHeads];        ///< positives by falling w |q|, then negatives by falling |w| |q| min(p, 1-p)
  bool by_winners[kMaxHeads];  ///< majority of the likely winners: q_h . k > 0 (by head)
  bool by_random[kMaxHeads];   ///< majority of the random keys (by head)
};

struct Prediction {
  int retained = 0, aggregates = 0;
  double survival = 1, cost = 1;
};

/// Measures a sample once for a row; then answers for any r. Memory: sample_floats(keys) floats.
class SampleModel {
 public:
  SampleModel(const RowInput& input, const RowFacts& facts, float* memory) noexcept;
  [[nodiscard]] static std::size_t floats(int keys) noexcept { return 6 * static_cast<std::size_t>(keys) + 64; }

  [[nodiscard]] const HeadOrder& heads() const noexcept { return heads_; }

  /// Walks r upwards from `first`: start(first, projection) then next() for r + 1. `per_norm`: model and arithmetic
  /// allowance.
  void start(int retained, const Projection& rest, double per_norm) noexcept;
  void next() noexcept;
  /// Share of random keys whose bound reaches the sample's K/n quantile, with one or two aggregates.
  [[nodiscard]] double survival(int aggregates) noexcept;

 private:
  void order_heads() noexcept;
  void subtract_member(int head, float factor) noexcept;

  const RowInput& input_;
  const RowFacts& facts_;
  HeadOrder heads_;
  int random_ = 0;  ///< random keys, lanes [likely_winners, keys) of the sample
  int retained_ = 0;
  float band_ = 0;  ///< half-width of the smoothing, scaled score units
  float* score_ = nullptr;
  float* threshold_ = nullptr;  ///< tau / scale
  float* inverse_ = nullptr;    ///< 1 / (2 band / scale)
  float* bound_ = nullptr;
  float* winners_ = nullptr;
  float* randoms_ = nullptr;
};

}  // namespace dosa::certificate
