// Model `f64` against integers of any size.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/float_environment.hpp"
#include "score/score.hpp"
#include "unit/score_inputs.hpp"
#include "unit/score_oracles.hpp"

namespace dosa::test {
namespace {

constexpr std::uint8_t kOne = 0x38, kTwo = 0x40, kMinusOne = 0xb8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// Heads that all give the dot `code` (times one) and any weights.
std::uint32_t equal_dots(std::uint8_t code, std::vector<float> weights, float key_scale) {
  std::vector<std::uint8_t> q(weights.size() * 32, 0), key(32, 0);
  for (std::size_t h = 0; h < weights.size(); ++h) q[h * 32] = code;
  key[0] = kOne;
  const ScoreRow row{q.data(), 32, weights.data(), 1, static_cast<std::int32_t>(weights.size()), 32};
  const float score = score_f64(row, key.data(), key_scale);
  EXPECT_EQ(bits(score), oracle_f64(row, key.data(), key_scale));
  return bits(score);
}

TEST(ScoreF64, UnitsOfEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    const Number n = number_of_code(c);
    EXPECT_EQ(e4m3_is_nan(c), n.kind == Number::Kind::nan) << code;
    if (n.kind == Number::Kind::nan) continue;
    const cpp_int units = n.magnitude << (n.exponent + 9);
    EXPECT_EQ(cpp_int(e4m3_units(c)), n.negative ? cpp_int(-units) : units) << code;
  }
}

TEST(ScoreF64, EveryProductOfTwoCodes) {
  const float weight = 1.0F, negative = -1.0F;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      std::uint8_t q[32] = {}, key[32] = {};
      q[7] = static_cast<std::uint8_t>(a), key[7] = static_cast<std::uint8_t>(b);
      for (const float& w : {weight, negative}) {
        const ScoreRow row{q, 32, &w, 1, 1, 32};
        ASSERT_EQ(bits(score_f64(row, key, 0.5F)), oracle_f64(row, key, 0.5F)) << a << " * " << b;
      }
    }
  }
}

TEST(ScoreF64, HostileInputsAgainstIntegers) {
  const cpu::FloatEnvironment environment;
  Inputs inputs(20260701);
  for (int trial = 0; trial < 1200; ++trial) {
    const int heads = 1 + static_cast<int>(inputs.below(12)), dim = 32 * (1 + static_cast<int>(inputs.below(3)));
    const auto q =
        inputs.codes(static_cast<std::size_t>(heads * dim), static_cast<int>(inputs.below(Inputs::kCodeFamilies)));
    const auto key = inputs.codes(static_cast<std::size_t>(dim), static_cast<int>(inputs.below(Inputs::kCodeFamilies)));
    const auto weights = inputs.numbers(static_cast<std::size_t>(heads), trial % Inputs::kFloatFamilies);
    const float key_scale = inputs.number(static_cast<int>(inputs.below(Inputs::kFloatFamilies)));
    const ScoreRow row{q.data(), dim, weights.data(), 1, heads, dim};
    ASSERT_EQ(bits(score_f64(row, key.data(), key_scale)), oracle_f64(row, key.data(), key_scale)) << "trial " << trial;
  }
}

TEST(ScoreF64, LargestDotsAreExact) {
  const std::vector<std::uint8_t> q(128 * 256, 0x7e), key(256, 0x7e);
  const std::vector<float> weights(128, std::numeric_limits<float>::max());
  const ScoreRow row{q.data(), 256, weights.data(), 1, 128, 256};
  EXPECT_EQ(bits(score_f64(row, key.data(), 1.0F)), bits(kInfinity));
  EXPECT_EQ(bits(score_f64(row, key.data(), 0x1p-149F)), oracle_f64(row, key.data(), 0x1p-149F));
}

// spec 4.4: the chain gives 0 where the real sum is -1.
TEST(ScoreF64, ChainForgetsTheSmallHeadBetweenHugeOnes) {
  EXPECT_EQ(equal_dots(kOne, {0x1p60F, -1.0F, -0x1p60F}, 1.0F), bits(0.0F));
}

TEST(ScoreF64, OrderOfTheHeadsMatters) { EXPECT_EQ(equal_dots(kOne, {0x1p60F, -0x1p60F, -1.0F}, 1.0F), bits(-1.0F)); }

TEST(ScoreF64, SignOfZero) {
  EXPECT_EQ(equal_dots(kMinusOne, {1.0F, -1.0F}, 1.0F), bits(0.0F));  // relu(-1) = +0; -1 * +0 + +0 = +0
  EXPECT_EQ(equal_dots(kMinusOne, {-1.0F}, 1.0F), bits(0.0F));
  EXPECT_EQ(equal_dots(kMinusOne, {1.0F}, -1.0F), bits(-0.0F));  // -1 * +0 = -0
  EXPECT_EQ(equal_dots(kOne, {1.0F}, -0.0F), bits(-0.0F));
  EXPECT_EQ(equal_dots(kOne, {-1.0F}, -0.0F), bits(0.0F));
}

TEST(ScoreF64, OneRoundingToBinary32) {
  // 1 + 2^-24 + 2^-60: binary64 keeps only the tie, which goes to even. Rounding once from the real number would go up.
  EXPECT_EQ(equal_dots(kOne, {0x1p-60F, 0x1p-24F, 1.0F}, 1.0F), bits(1.0F));
  EXPECT_EQ(equal_dots(kOne, {0x1p-40F, 0x1p-24F, 1.0F}, 1.0F), bits(0x1.000002p0F));
}

TEST(ScoreF64, SubnormalAndOverflowEnds) {
  EXPECT_EQ(equal_dots(kOne, {0x1p-149F}, 1.0F), bits(0x1p-149F));
  EXPECT_EQ(equal_dots(kOne, {0x1p-149F}, 0.5F), bits(0.0F));  // half of the least: tie to even
  EXPECT_EQ(equal_dots(kTwo, {0x1.8p-149F}, 0.5F), bits(0x1p-148F));
  EXPECT_EQ(equal_dots(kTwo, {0x1p-149F}, -0x1p-149F), bits(-0.0F));
  EXPECT_EQ(equal_dots(kTwo, {0x1p127F}, 1.0F), bits(kInfinity));
  EXPECT_EQ(equal_dots(kTwo, {0x1p127F}, -0.5F), bits(-0x1p127F));  // no overflow on the way
}

TEST(ScoreF64, NanAndInfinity) {
  constexpr std::uint32_t kNan = 0x7fffffffU;
  EXPECT_EQ(equal_dots(0x7f, {0.0F}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(0xff, {0.0F}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(kOne, {std::nanf("")}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(kOne, {-1.0F}, std::nanf("")), kNan);
  EXPECT_EQ(equal_dots(kMinusOne, {kInfinity}, 1.0F), kNan);  // Inf * relu(-1) = Inf * 0
  EXPECT_EQ(equal_dots(kOne, {kInfinity}, -2.0F), bits(-kInfinity));
  EXPECT_EQ(equal_dots(kOne, {kInfinity, -kInfinity}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(kMinusOne, {1.0F}, kInfinity), kNan);  // Inf * +0
}

TEST(ScoreF64, StridesOfHeadsAndWeights) {
  Inputs inputs(7);
  const auto q = inputs.codes(400, 1), key = inputs.codes(64, 1);
  const auto weights = inputs.numbers(40, 0);
  const ScoreRow spread{q.data() + 3, 71, weights.data() + 1, 5, 4, 64};
  EXPECT_EQ(bits(score_f64(spread, key.data(), 1.0F)), oracle_f64(spread, key.data(), 1.0F));
  const ScoreRow broadcast{q.data(), 0, weights.data(), 0, 4, 64};
  EXPECT_EQ(bits(score_f64(broadcast, key.data(), 1.0F)), oracle_f64(broadcast, key.data(), 1.0F));
}

}  // namespace
}  // namespace dosa::test
