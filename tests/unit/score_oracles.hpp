// Both score models in integers of any size: no floating-point hardware, none of the library's tables.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <vector>

#include "score/score.hpp"

namespace dosa::test {

using boost::multiprecision::cpp_int;

/// (-1)^negative * magnitude * 2^exponent, or an infinity, or NaN.
struct Number {
  enum class Kind : std::uint8_t { finite, infinite, nan };
  Kind kind = Kind::finite;
  bool negative = false;
  cpp_int magnitude = 0;
  int exponent = 0;

  [[nodiscard]] bool zero() const { return kind == Kind::finite && magnitude == 0; }
};

struct Format {
  int precision, least_ulp, greatest_exponent;
};
inline constexpr Format kBinary32{24, -149, 127}, kBinary64{53, -1074, 1023};

inline Number number_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t field = (bits >> 23U) & 255U, fraction = bits & 0x7fffffU;
  Number n;
  n.negative = (bits >> 31U) != 0;
  if (field == 255) {
    n.kind = fraction != 0 ? Number::Kind::nan : Number::Kind::infinite;
  } else {
    n.magnitude = field == 0 ? fraction : fraction | 0x800000U;
    n.exponent = field == 0 ? -149 : static_cast<int>(field) - 150;
  }
  return n;
}

/// F32 bits of a number that is representable; NaN as the contract writes it.
inline std::uint32_t bits_of(const Number& n) {
  const std::uint32_t sign = n.negative ? 0x80000000U : 0U;
  if (n.kind == Number::Kind::nan) return 0x7fffffffU;
  if (n.kind == Number::Kind::infinite) return sign | 0x7f800000U;
  if (n.magnitude == 0) return sign;
  const int leading = static_cast<int>(msb(n.magnitude)) + n.exponent;
  const int ulp = std::max(leading - 23, -149);
  const cpp_int scaled =
      n.exponent >= ulp ? cpp_int(n.magnitude << (n.exponent - ulp)) : cpp_int(n.magnitude >> (ulp - n.exponent));
  const auto significand = static_cast<std::uint32_t>(scaled);
  return sign | (leading < -126 ? significand
                                : (static_cast<std::uint32_t>(leading + 127) << 23U) | (significand & 0x7fffffU));
}

/// Round to nearest, ties to even, subnormals kept, overflow to infinity.
inline Number rounded(Number n, const Format& format) {
  if (n.kind != Number::Kind::finite || n.magnitude == 0) return n;
  const int ulp = std::max(static_cast<int>(msb(n.magnitude)) + n.exponent - (format.precision - 1), format.least_ulp);
  if (ulp > n.exponent) {
    const int drop = ulp - n.exponent;
    const cpp_int kept = n.magnitude >> drop;
    const cpp_int twice_rest = (n.magnitude - (kept << drop)) * 2, unit = cpp_int(1) << drop;
    const bool up = twice_rest > unit || (twice_rest == unit && bit_test(kept, 0));
    n.magnitude = up ? cpp_int(kept + 1) : kept;
    n.exponent = ulp;
  }
  if (n.magnitude != 0 && static_cast<int>(msb(n.magnitude)) + n.exponent > format.greatest_exponent) {
    n.kind = Number::Kind::infinite;
  }
  return n;
}

inline Number exact_product(const Number& a, const Number& b) {
  Number p;
  p.negative = a.negative != b.negative;
  if (a.kind == Number::Kind::nan || b.kind == Number::Kind::nan) {
    p.kind = Number::Kind::nan;
  } else if (a.kind == Number::Kind::infinite || b.kind == Number::Kind::infinite) {
    p.kind = a.zero() || b.zero() ? Number::Kind::nan : Number::Kind::infinite;
  } else {
    p.magnitude = a.magnitude * b.magnitude;
    p.exponent = a.exponent + b.exponent;
  }
  return p;
}

inline Number exact_sum(const Number& a, const Number& b) {
  if (a.kind == Number::Kind::nan || b.kind == Number::Kind::nan) return {Number::Kind::nan, false, 0, 0};
  if (a.kind == Number::Kind::infinite || b.kind == Number::Kind::infinite) {
    if (a.kind == b.kind && a.negative != b.negative) return {Number::Kind::nan, false, 0, 0};
    return a.kind == Number::Kind::infinite ? a : b;
  }
  Number s;
  s.exponent = std::min(a.exponent, b.exponent);
  cpp_int total = a.magnitude << (a.exponent - s.exponent), other = b.magnitude << (b.exponent - s.exponent);
  if (a.negative) total = -total;
  total += b.negative ? cpp_int(-other) : other;
  s.negative = total != 0 ? total < 0 : a.zero() && a.negative && b.negative;  // exact cancellation gives +0
  s.magnitude = abs(total);
  return s;
}

inline Number fused(const Number& a, const Number& b, const Number& c, const Format& format) {
  return rounded(exact_sum(exact_product(a, b), c), format);
}
inline Number sum(const Number& a, const Number& b, const Format& format) { return rounded(exact_sum(a, b), format); }
inline Number product(const Number& a, const Number& b, const Format& format) {
  return rounded(exact_product(a, b), format);
}

/// The E4M3 definition: s eeee mmm, bias 7, no infinities, 1111 111 is NaN.
inline Number number_of_code(std::uint8_t code) {
  const int field = (code / 8) % 16, mantissa = code % 8;
  Number n;
  n.negative = code >= 128;
  if (field == 15 && mantissa == 7) {
    n.kind = Number::Kind::nan;
  } else {
    n.magnitude = field == 0 ? mantissa : 8 + mantissa;
    n.exponent = (field == 0 ? 1 : field) - 10;
  }
  return n;
}

inline std::uint32_t oracle_f64(const ScoreRow& row, const std::uint8_t* key, float key_scale) {
  Number acc;
  for (int h = 0; h < row.heads; ++h) {
    Number dot;
    for (int d = 0; d < row.head_dim; ++d) {
      dot = exact_sum(dot, exact_product(number_of_code(row.q[h * row.head_stride + d]), number_of_code(key[d])));
    }
    const bool positive = dot.kind == Number::Kind::nan || (!dot.negative && dot.magnitude != 0);
    acc = fused(number_of(row.weights[h * row.weight_stride]), positive ? dot : Number{}, acc, kBinary64);
  }
  return bits_of(rounded(product(number_of(key_scale), acc, kBinary64), kBinary32));
}

/// spec of one wgmma k-step in units of 2^-200 (every E4M3 product and every F32 number is a multiple).
inline Number oracle_accumulate(const std::uint8_t* a, const std::uint8_t* b, const Number& c) {
  constexpr int kUnit = 200;
  if (c.kind == Number::Kind::nan) return c;
  std::vector<cpp_int> terms;
  bool any = false;
  int e = 0;
  const auto see = [&](int exponent) {
    e = any ? std::max(e, exponent) : exponent;
    any = true;
  };
  for (int i = 0; i < 32; ++i) {
    const Number x = number_of_code(a[i]), y = number_of_code(b[i]), p = exact_product(x, y);
    if (p.kind == Number::Kind::nan) return p;
    if (p.magnitude == 0) continue;
    see(x.exponent + 3 + y.exponent + 3);  // unnormalised: significands count eighths
    const cpp_int units = p.magnitude << (p.exponent + kUnit);
    terms.push_back(p.negative ? cpp_int(-units) : units);
  }
  if (c.magnitude != 0) {
    see(static_cast<int>(msb(c.magnitude)) + c.exponent);
    const cpp_int units = c.magnitude << (c.exponent + kUnit);
    terms.push_back(c.negative ? cpp_int(-units) : units);
  }
  if (!any) return {};
  const cpp_int u = cpp_int(1) << (e - 13 + kUnit);
  cpp_int total = 0;
  for (const cpp_int& term : terms) total += term / u;  // integer division cuts toward zero
  Number result;
  if (total == 0) return result;
  result.negative = total < 0;
  result.magnitude = abs(total);
  result.exponent = e - 13;
  const int excess = std::max(static_cast<int>(msb(result.magnitude)) - 13, 0);
  result.magnitude = (result.magnitude >> excess) << excess;
  return result;
}

/// Heads padded to `padded` (0: the least multiple of 8 that is at least max(16, H)) with code 0 and weight `padding`.
inline std::uint32_t oracle_sm90(const ScoreRow& row, const std::uint8_t* key, float key_scale, int padded = 0,
                                 float padding = -0.0F) {
  int count = padded;
  if (count == 0) {
    for (count = 16; count < row.heads; count += 8) {
    }
  }
  std::vector<Number> r(static_cast<std::size_t>(count)), w(static_cast<std::size_t>(count), number_of(padding));
  for (int h = 0; h < row.heads; ++h) {
    Number acc;
    for (int d = 0; d < row.head_dim; d += 32) acc = oracle_accumulate(row.q + h * row.head_stride + d, key + d, acc);
    const auto at = static_cast<std::size_t>(h);
    if (acc.kind == Number::Kind::finite && !acc.negative) r[at] = acc;
    w[at] = number_of(row.weights[h * row.weight_stride]);
  }
  const auto chain = [&](std::size_t t, std::size_t e) {
    const std::size_t lane = 2 * t + e;
    Number s = product(w[lane + 8], r[lane + 8], kBinary32);
    s = fused(w[lane], r[lane], s, kBinary32);
    for (std::size_t g = 2; g < w.size() / 8; ++g) s = fused(w[8 * g + lane], r[8 * g + lane], s, kBinary32);
    return s;
  };
  Number part[4];
  for (std::size_t t = 0; t < 4; ++t) {
    part[t] = product(sum(chain(t, 0), chain(t, 1), kBinary32), number_of(key_scale), kBinary32);
  }
  return bits_of(sum(sum(part[0], part[1], kBinary32), sum(part[2], part[3], kBinary32), kBinary32));
}

}  // namespace dosa::test
