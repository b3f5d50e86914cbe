// Rounding outward: constants of a bound are computed in binary64 and leave it as F32 on the safe side.
#pragma once

#include <cstdint>
#include <cstring>

#include "contract/host_device.hpp"

namespace dosa::certificate {

/// Relative inflation of a sum of at most 2^10 non-negative binary64 terms that covers its own roundings (2^-52 each,
/// any rounding mode) many times over.
inline constexpr double kInflate = 1.0 + 0x1p-36;

/// Smallest F32 that is not below x; +inf above the largest finite F32. NaN stays NaN.
[[nodiscard]] DOSA_HOST_DEVICE inline float round_up(double x) noexcept {
  auto value = static_cast<float>(x);
  if (static_cast<double>(value) < x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    // One step toward +inf: away from zero for positive values, toward it for negative ones; -0 becomes the smallest
    // subnormal.
    if ((bits & 0x7fffffffU) == 0) {
      bits = 1;
    } else if ((bits >> 31) == 0) {
      ++bits;
    } else {
      --bits;
    }
    std::memcpy(&value, &bits, sizeof value);
  }
  return value;
}

/// Largest F32 that is not above x.
[[nodiscard]] DOSA_HOST_DEVICE inline float round_down(double x) noexcept { return -round_up(-x); }

}  // namespace dosa::certificate
