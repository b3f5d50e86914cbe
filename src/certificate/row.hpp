// One query row decoded: values, norms and whether a certificate may speak about it at all.
#pragma once

#include "certificate/dosa_bound.hpp"

namespace dosa::certificate {

inline constexpr int kMaxHeads = 128;
inline constexpr int kMaxDim = 256;
inline constexpr int kMaxChunks = kMaxDim / 32;
inline constexpr double kMaxCode = 448;

struct RowFacts {
  int heads = 0, dim = 0;
  bool finite = false;         ///< every weight finite; no NaN code where the model lets it reach the score
  double weight[kMaxHeads];    ///< 0 for heads that contribute 0 to every key
  double norm[kMaxHeads];      ///< |q_h|, at least the real value
  double absolute[kMaxHeads];  ///< sum over d of |q_hd|, exact
};

/// Decodes q into values[h * D + d] (exact) and measures the heads. Heads that contribute 0 to every key (zero weight,
/// zero codes; under sm90 a NaN code: its relu gives +0) get weight 0 and zero values.
void read_row(const ScoreRow& row, ScoreModel model, const cpu::RowLoops& loops, float* values,
              RowFacts& facts) noexcept;

}  // namespace dosa::certificate
