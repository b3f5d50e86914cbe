// A bound's rows as integers of a byte, and what that costs (T11).
#pragma once

#include "certificate/form.hpp"

namespace dosa::certificate {

/// What keys and rows lose as integers, a unit of |k| and of the key's residual.
struct NarrowAllowance {
  bool fits = false;  ///< false: a factor is no F32 number; rows are as they were
  double norm = 0, residual = 0;
};

/// Fills the target with the rows [retained + aggregates][D]: the retained heads, with coefficients coef[j], and the
/// aggregates. Where it fits, the former are overwritten.
[[nodiscard]] NarrowAllowance narrow_form(const RealBound& bound, const RowFacts& facts, const float* values,
                                          const float* coef, const cpu::RowLoops& loops, const NarrowTarget& target,
                                          float* rows) noexcept;

}  // namespace dosa::certificate
