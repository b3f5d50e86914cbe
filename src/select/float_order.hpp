// Floats as positions in the order of the reals.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace dosa {

/// Bisecting it halves the number of floats left, whatever their spacing. Both zeros are at 0; not for NaN.
[[nodiscard]] inline std::int32_t ordinal(float value) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits >= 0 ? bits : std::numeric_limits<std::int32_t>::min() - bits;
}

[[nodiscard]] inline float at_ordinal(std::int32_t position) noexcept {
  return std::bit_cast<float>(position >= 0 ? position : std::numeric_limits<std::int32_t>::min() - position);
}

[[nodiscard]] inline float halfway(float low, float high) noexcept {
  return at_ordinal(static_cast<std::int32_t>((std::int64_t{ordinal(low)} + ordinal(high)) / 2));
}

}  // namespace dosa
