// Rows and keys made to break an evaluation of the score models.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "score/score.hpp"

namespace dosa::test {

class Inputs {
 public:
  explicit Inputs(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  static constexpr int kCodeFamilies = 9;
  std::uint8_t code(int family) {
    const auto any = static_cast<std::uint8_t>(random_());
    const auto sign = static_cast<std::uint8_t>(any & 0x80U);
    switch (family) {
      case 0:
        return any;  // all 256: mostly NaN keys
      case 1:
        return finite(any);
      case 2:
        return static_cast<std::uint8_t>(any & 0x87U);  // zeros and subnormals
      case 3:
        return below(8) == 0 ? finite(any) : sign;  // sparse, zeros of both signs
      case 4:
        return below(32) == 0 ? static_cast<std::uint8_t>(sign | 0x7eU)
                              : static_cast<std::uint8_t>(sign | 0x10U | (any & 7U));  // one big among small
      case 5:
        return static_cast<std::uint8_t>(sign | 0x7eU);  // +-448
      case 6:
        return static_cast<std::uint8_t>(sign | (0x30U + below(32)));  // within a few binades
      case 7:
        return below(200) == 0 ? static_cast<std::uint8_t>(any | 0x7fU) : finite(any);  // a NaN now and then
      default: {  // about normal, as rows scaled to their maximum are
        std::uint64_t s = 0;
        for (int i = 0; i < 8; ++i) s += below(16);
        const std::uint64_t distance = s > 60 ? s - 60 : 60 - s;
        return static_cast<std::uint8_t>(
            (s > 60 ? 0U : 0x80U) |
            (distance == 0 ? 0U : 0x40U + 6U * static_cast<unsigned>(std::bit_width(distance))));
      }
    }
  }

  static constexpr int kFloatFamilies = 7;
  float number(int family) {
    const auto bits = static_cast<std::uint32_t>(random_());
    switch (family) {
      case 0:
        return unit();
      case 1:
        return std::bit_cast<float>(bits);  // anything
      case 2:
        return std::bit_cast<float>((bits & 0x80ffffffU) | 0x7e000000U);  // overflows
      case 3:
        return std::bit_cast<float>(bits & 0x807fffffU);  // subnormals
      case 4:
        return below(2) == 0 ? 0.0F : -0.0F;
      case 5:
        return std::bit_cast<float>(((bits % 255U) << 23U) | (bits & 0x80000000U));  // powers of two
      default: {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const float special[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0F, -0.0F,
                                 3e38F,     -3e38F};
        return below(6) == 0 ? special[below(7)] : unit();
      }
    }
  }

  std::vector<std::uint8_t> codes(std::size_t count, int family) {
    std::vector<std::uint8_t> out(count);
    for (auto& value : out) value = code(family);
    return out;
  }
  std::vector<float> numbers(std::size_t count, int family) {
    std::vector<float> out(count);
    for (auto& value : out) value = number(family);
    return out;
  }

 private:
  static std::uint8_t finite(std::uint8_t code) {
    return e4m3_is_nan(code) ? static_cast<std::uint8_t>(code ^ 0x13U) : code;
  }
  float unit() { return static_cast<float>(static_cast<std::int64_t>(below(2000001)) - 1000000) * 1e-6F; }

  std::mt19937_64 random_;
};

}  // namespace dosa::test
