// From real numbers to the F32 form that a kernel evaluates: every constant rounded outward, every rounding of the
// evaluation and of the score model covered by an allowance (T7, T8).
#pragma once

#include "certificate/model_error.hpp"
#include "certificate/projection.hpp"

namespace dosa::certificate {

inline constexpr int kMaxAggregates = 2;

/// A bound in real arithmetic: sum coef_j relu(q_j . k) + min(norm |k|, mean + centred |k - mu|) - max over rows a of
/// (sum over h of share[a][h] q_h . k), and zero is one of the rows where clamp is set.
struct RealBound {
  int retained = 0;
  int head[kMaxHeads];     ///< retained heads
  double coef[kMaxHeads];  ///< at least the real coefficient (equal where it is a weight)
  int aggregates = 0;
  double share[kMaxAggregates][kMaxHeads];  ///< by head
  bool clamp = true;
  Projection rest;
  bool centred = false;  ///< rest.mean and rest.centred are valid for the mean of the pack
};

/// Fills rows (retained, then aggregates), coef and spec. `values` [H][D] of read_row may be `rows` itself when all
/// heads are retained in order. False where a constant is not finite or the evaluation could overflow. With a target
/// the form is narrow where it can be (T11), and `rows` serves as memory.
[[nodiscard]] bool make_form(const RealBound& bound, const RowFacts& facts, const ModelError& model,
                             const cpu::Arithmetic& arithmetic, int features, const float* mean, const float* values,
                             float* rows, float* coef, cpu::FormSpec& spec, const NarrowTarget& target = {},
                             const cpu::RowLoops& loops = cpu::portable_kernels()->loops) noexcept;

}  // namespace dosa::certificate
