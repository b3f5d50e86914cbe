#include "score/e4m3.hpp"

#include "score/score.hpp"

namespace dosa {
namespace {

constexpr E4m3Parts parts_of(unsigned code) {
  const int field = static_cast<int>((code >> 3U) & 15U);
  const int mantissa = static_cast<int>(code & 7U);
  const int magnitude = field == 0 ? mantissa : 8 + mantissa;
  if (magnitude == 0 || (code & 0x7fU) == 0x7fU) return {0, kE4m3NoExponent};
  const int exponent = field == 0 ? -6 : field - 7;
  return {static_cast<std::int16_t>((code & 0x80U) != 0 ? -magnitude : magnitude), static_cast<std::int16_t>(exponent)};
}

// value / 2^-9 = significand * 2^(exponent + 6).
constexpr std::int32_t units_of(unsigned code) {
  const E4m3Parts parts = parts_of(code);
  return parts.significand == 0 ? 0 : parts.significand * (std::int32_t{1} << (parts.exponent + 6));
}

#define DOSA_ROW4(f, c) f(c), f(c + 1), f(c + 2), f(c + 3)
#define DOSA_ROW16(f, c) DOSA_ROW4(f, c), DOSA_ROW4(f, c + 4), DOSA_ROW4(f, c + 8), DOSA_ROW4(f, c + 12)
#define DOSA_ROW64(f, c) DOSA_ROW16(f, c), DOSA_ROW16(f, c + 16), DOSA_ROW16(f, c + 32), DOSA_ROW16(f, c + 48)
#define DOSA_ROW256(f) DOSA_ROW64(f, 0U), DOSA_ROW64(f, 64U), DOSA_ROW64(f, 128U), DOSA_ROW64(f, 192U)

}  // namespace

constexpr E4m3Parts e4m3_parts[256] = {DOSA_ROW256(parts_of)};
constexpr std::int32_t e4m3_unit_values[256] = {DOSA_ROW256(units_of)};

std::int32_t e4m3_units(std::uint8_t code) noexcept { return e4m3_unit_values[code]; }

}  // namespace dosa
