// E4M3 codes ("fn" variant) taken apart: the tables behind both score models.
#pragma once

#include <cstdint>

namespace dosa {

/// value = significand * 2^(exponent - 3). Normal codes have |significand| 8..15; subnormal codes keep exponent -6 with
/// |significand| 1..7, not normalised, as the tensor core does. Zero and NaN codes have significand 0 and an exponent
/// so low that a sum with any other exponent stays below every sum of two nonzero codes (at least -12).
struct E4m3Parts {
  std::int16_t significand;
  std::int16_t exponent;
};
inline constexpr std::int16_t kE4m3NoExponent = -64;
inline constexpr std::int16_t kE4m3LeastProductExponent = -12;

// Plain arrays: files built for one instruction set must not instantiate templates that others could link to.
extern const E4m3Parts e4m3_parts[256];
extern const std::int32_t e4m3_unit_values[256];  ///< e4m3_units as a table; 0 for NaN codes

}  // namespace dosa
