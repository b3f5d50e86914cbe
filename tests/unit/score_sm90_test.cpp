// Model `sm90` against its rule in integers of any size, and the invariances that the rule implies. The real kernel's
// bits are in tests/golden.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cpu/float_environment.hpp"
#include "score/score.hpp"
#include "unit/score_inputs.hpp"
#include "unit/score_oracles.hpp"

namespace dosa::test {
namespace {

constexpr std::uint8_t kOne = 0x38, kTwo = 0x40, kMinusOne = 0xb8;
constexpr std::uint32_t kNan = 0x7fffffffU;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

struct Step {
  std::vector<std::uint8_t> a, b;
  float c;
};

// c: 0, an accumulator of a chain, or any finite F32.
Step random_step(Inputs& inputs, int trial) {
  const auto family = [&] { return static_cast<int>(inputs.below(Inputs::kCodeFamilies)); };
  Step step{inputs.codes(32, family()), inputs.codes(32, family()), 0.0F};
  if (trial % 3 == 1) step.c = sm90_accumulate(inputs.codes(32, 1).data(), inputs.codes(32, 6).data(), 0.0F);
  if (trial % 3 == 2) {
    do {
      step.c = inputs.number(trial % 2 == 0 ? 1 : 0);
    } while (!std::isfinite(step.c));
  }
  return step;
}

TEST(ScoreSm90, AccumulatorAgainstIntegers) {
  Inputs inputs(90);
  for (int trial = 0; trial < 30000; ++trial) {
    const Step step = random_step(inputs, trial);
    ASSERT_EQ(bits(sm90_accumulate(step.a.data(), step.b.data(), step.c)),
              bits_of(oracle_accumulate(step.a.data(), step.b.data(), number_of(step.c))))
        << "trial " << trial << " c " << step.c;
  }
}

TEST(ScoreSm90, EveryProductOfTwoCodes) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      std::uint8_t left[32] = {}, right[32] = {};
      left[31] = static_cast<std::uint8_t>(a), right[31] = static_cast<std::uint8_t>(b);
      for (const float c : {0.0F, 1.0F, -0x1.fffp-9F}) {
        ASSERT_EQ(bits(sm90_accumulate(left, right, c)), bits_of(oracle_accumulate(left, right, number_of(c))))
            << a << " * " << b << " + " << c;
      }
      // A lone product is exact.
      const Number exact = exact_product(number_of_code(left[31]), number_of_code(right[31]));
      ASSERT_EQ(bits(sm90_accumulate(left, right, 0.0F)) & 0x7fffffffU, bits_of(exact) & 0x7fffffffU);
    }
  }
}

TEST(ScoreSm90, PermutingAChunkOrSwappingOperandsChangesNoBit) {
  Inputs inputs(91);
  std::mt19937_64 shuffle(5);
  for (int trial = 0; trial < 5000; ++trial) {
    const Step step = random_step(inputs, trial);
    const std::uint32_t wanted = bits(sm90_accumulate(step.a.data(), step.b.data(), step.c));
    EXPECT_EQ(bits(sm90_accumulate(step.b.data(), step.a.data(), step.c)), wanted);
    std::vector<int> order(32);
    for (int i = 0; i < 32; ++i) order[static_cast<std::size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), shuffle);
    std::vector<std::uint8_t> a, b;
    for (const int i : order) {
      a.push_back(step.a[static_cast<std::size_t>(i)]);
      b.push_back(step.b[static_cast<std::size_t>(i)]);
    }
    ASSERT_EQ(bits(sm90_accumulate(a.data(), b.data(), step.c)), wanted) << "trial " << trial;
  }
}

TEST(ScoreSm90, NegatingOneOperandAndTheAccumulatorFlipsTheSign) {
  Inputs inputs(92);
  int nonzero = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    Step step = random_step(inputs, trial);
    const float plain = sm90_accumulate(step.a.data(), step.b.data(), step.c);
    for (auto& code : step.a) code ^= 0x80U;
    const float flipped = sm90_accumulate(step.a.data(), step.b.data(), -step.c);
    if (std::isnan(plain)) {
      EXPECT_EQ(bits(flipped), kNan);
    } else if (plain == 0) {
      EXPECT_EQ(bits(plain), 0U);  // never -0
      EXPECT_EQ(bits(flipped), 0U);
    } else {
      ASSERT_EQ(bits(flipped), bits(plain) ^ 0x80000000U);
      ++nonzero;
    }
  }
  EXPECT_GT(nonzero, 2000);
}

TEST(ScoreSm90, AccumulatorsKeepThirteenFractionBits) {
  Inputs inputs(93);
  for (int trial = 0; trial < 5000; ++trial) {
    float c = 0.0F;
    for (int chunk = 0; chunk < 8; ++chunk) {
      c = sm90_accumulate(inputs.codes(32, 1 + trial % 6).data(), inputs.codes(32, 1 + trial % 5).data(), c);
      ASSERT_EQ(bits(c) & 0x3ffU, 0U);
      ASSERT_TRUE(c == 0 || std::isnormal(c));
    }
  }
}

// 448^2 = 200704 has E = 17 as an accumulator (u = 16) and 16 as a product (u = 8): each product 1 is cut away behind
// it, but their sum 32, made before it, stays.
TEST(ScoreSm90, OrderOfTheChunksMatters) {
  std::uint8_t ones[32], big[32] = {};
  std::fill(std::begin(ones), std::end(ones), kOne);
  big[0] = 0x7e;
  EXPECT_EQ(sm90_accumulate(big, big, sm90_accumulate(ones, ones, 0.0F)), 200736.0F);
  EXPECT_EQ(sm90_accumulate(ones, ones, sm90_accumulate(big, big, 0.0F)), 200704.0F);
}

TEST(ScoreSm90, ZeroProductsDoNotCountWhateverTheOtherFactor) {
  std::uint8_t a[32] = {}, b[32] = {};
  a[0] = 0x01, b[0] = 0x01;  // 2^-18
  a[1] = 0x7e, b[1] = 0x80;  // 448 * -0
  EXPECT_EQ(sm90_accumulate(a, b, 0.0F), 0x1p-18F);
}

TEST(ScoreSm90, NothingNonzeroGivesPlusZero) {
  std::uint8_t a[32], b[32];
  std::fill(std::begin(a), std::end(a), std::uint8_t{0x80});
  std::fill(std::begin(b), std::end(b), std::uint8_t{0x7e});
  EXPECT_EQ(bits(sm90_accumulate(a, b, 0.0F)), 0U);
  EXPECT_EQ(bits(sm90_accumulate(a, b, -0.0F)), 0U);
}

TEST(ScoreSm90, NanCodesAndNanAccumulators) {
  for (const std::uint8_t nan : {std::uint8_t{0x7f}, std::uint8_t{0xff}}) {
    for (int at = 0; at < 32; ++at) {
      std::uint8_t a[32] = {}, b[32] = {};
      a[at] = nan;
      EXPECT_EQ(bits(sm90_accumulate(a, b, 1.0F)), kNan);  // NaN * 0 too
      EXPECT_EQ(bits(sm90_accumulate(b, a, 1.0F)), kNan);
    }
  }
  const std::uint8_t zeros[32] = {};
  EXPECT_EQ(bits(sm90_accumulate(zeros, zeros, std::nanf(""))), kNan);
}

// One head count and head_dim of every kind, all families.
TEST(ScoreSm90, ScoresAgainstIntegers) {
  const cpu::FloatEnvironment environment;
  Inputs inputs(94);
  for (int trial = 0; trial < 1500; ++trial) {
    const int kinds[] = {1, 2, 7, 8, 9, 15, 16, 17, 24, 32};
    const int heads = kinds[inputs.below(10)], dim = 32 * (1 + static_cast<int>(inputs.below(3)));
    const auto q =
        inputs.codes(static_cast<std::size_t>(heads * dim), static_cast<int>(inputs.below(Inputs::kCodeFamilies)));
    const auto key = inputs.codes(static_cast<std::size_t>(dim), static_cast<int>(inputs.below(Inputs::kCodeFamilies)));
    const auto weights = inputs.numbers(static_cast<std::size_t>(heads), trial % Inputs::kFloatFamilies);
    const float key_scale = inputs.number(static_cast<int>(inputs.below(Inputs::kFloatFamilies)));
    const ScoreRow row{q.data(), dim, weights.data(), 1, heads, dim};
    ASSERT_EQ(bits(score_sm90(row, key.data(), key_scale)), oracle_sm90(row, key.data(), key_scale))
        << "trial " << trial;
  }
}

TEST(ScoreSm90, PaddingHeadsWithMinusZeroWeightsChangeNoBit) {
  Inputs inputs(95);
  for (int trial = 0; trial < 400; ++trial) {
    const int heads = 1 + static_cast<int>(inputs.below(40)), dim = 32;
    auto q = inputs.codes(static_cast<std::size_t>(heads * dim), trial % Inputs::kCodeFamilies);
    const auto key = inputs.codes(static_cast<std::size_t>(dim), 1);
    auto weights = inputs.numbers(static_cast<std::size_t>(heads), trial % Inputs::kFloatFamilies);
    const float key_scale = inputs.number(trial / 7 % Inputs::kFloatFamilies);
    const ScoreRow row{q.data(), dim, weights.data(), 1, heads, dim};
    const std::uint32_t wanted = bits(score_sm90(row, key.data(), key_scale));
    q.resize(128 * 32, 0);
    weights.resize(128, -0.0F);
    for (int padded = heads; padded <= 128; padded += 1 + static_cast<int>(inputs.below(16))) {
      const ScoreRow wide{q.data(), dim, weights.data(), 1, padded, dim};
      ASSERT_EQ(bits(score_sm90(wide, key.data(), key_scale)), wanted) << heads << " heads as " << padded;
    }
    const ScoreRow same{q.data(), dim, weights.data(), 1, heads, dim};
    ASSERT_EQ(oracle_sm90(same, key.data(), key_scale, 128), wanted);
  }
}

TEST(ScoreSm90, PaddingWithPlusZeroWeightsWouldFlipASignOfZero) {
  const std::vector<std::uint8_t> q(16 * 32, 0), key(32, kOne);
  const std::vector<float> weights(16, -1.0F);  // every term is -0
  const ScoreRow row{q.data(), 32, weights.data(), 1, 16, 32};
  EXPECT_EQ(bits(score_sm90(row, key.data(), 1.0F)), bits(-0.0F));
  EXPECT_EQ(oracle_sm90(row, key.data(), 1.0F, 24, 0.0F), bits(0.0F));
}

// relu is max(0, x) of the device, which drops NaN: a NaN code acts as zeros do.
TEST(ScoreSm90, NanCodesDoNotReachTheLogit) {
  Inputs inputs(96);
  auto q = inputs.codes(32 * 64, 1);
  const auto weights = inputs.numbers(32, 0);
  auto key = inputs.codes(64, 1);
  const std::vector<std::uint8_t> zeros(64, 0);
  const ScoreRow row{q.data(), 64, weights.data(), 1, 32, 64};
  key[40] = 0xff;
  EXPECT_EQ(bits(score_sm90(row, key.data(), 0.5F)), bits(score_sm90(row, zeros.data(), 0.5F)));
  key[40] = kTwo;
  q[64 * 5 + 3] = 0x7f;
  const std::uint32_t with_nan_head = bits(score_sm90(row, key.data(), 0.5F));
  std::fill(q.begin() + 64 * 5, q.begin() + 64 * 6, std::uint8_t{0});
  EXPECT_EQ(with_nan_head, bits(score_sm90(row, key.data(), 0.5F)));
}

// Heads that all give the dot of `code` and 1.
std::uint32_t equal_dots(std::uint8_t code, const std::vector<float>& weights, float key_scale) {
  std::vector<std::uint8_t> q(weights.size() * 32, 0), key(32, 0);
  for (std::size_t h = 0; h < weights.size(); ++h) q[h * 32] = code;
  key[0] = kOne;
  const ScoreRow row{q.data(), 32, weights.data(), 1, static_cast<std::int32_t>(weights.size()), 32};
  const float score = score_sm90(row, key.data(), key_scale);
  EXPECT_EQ(bits(score), oracle_sm90(row, key.data(), key_scale));
  return bits(score);
}

// spec 4.4: the real sum is small, the chain overflows on head 8, which comes before head 0.
TEST(ScoreSm90, GroupOneOverflowsBeforeGroupZeroCancelsIt) {
  std::vector<float> weights(32, 0.0F);
  weights[8] = 3e38F, weights[0] = -3e38F, weights[1] = -1.0F;
  EXPECT_EQ(equal_dots(kTwo, weights, 1.0F), bits(kInfinity));
  EXPECT_EQ(equal_dots(kOne, weights, 1.0F), bits(-1.0F));  // no overflow: cancels
}

TEST(ScoreSm90, NanAndInfinityInWeightsAndScales) {
  EXPECT_EQ(equal_dots(kMinusOne, {kInfinity}, 1.0F), kNan);  // Inf * +0
  EXPECT_EQ(equal_dots(kOne, {kInfinity}, -1.0F), bits(-kInfinity));
  EXPECT_EQ(equal_dots(0x7f, {1.0F}, 1.0F), bits(0.0F));
  EXPECT_EQ(equal_dots(0x7f, {kInfinity}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(kOne, {std::nanf("")}, 1.0F), kNan);
  EXPECT_EQ(equal_dots(kOne, {1.0F}, std::nanf("")), kNan);
  EXPECT_EQ(equal_dots(kOne, {1.0F}, kInfinity), kNan);  // the other lanes scale zeros by Inf
}

TEST(ScoreSm90, StridesOfHeadsAndWeights) {
  Inputs inputs(8);
  const auto q = inputs.codes(400, 1), key = inputs.codes(64, 1);
  const auto weights = inputs.numbers(40, 0);
  const ScoreRow spread{q.data() + 3, 71, weights.data() + 1, 5, 4, 64};
  EXPECT_EQ(bits(score_sm90(spread, key.data(), 1.0F)), oracle_sm90(spread, key.data(), 1.0F));
  const ScoreRow broadcast{q.data(), 0, weights.data(), 0, 4, 64};
  EXPECT_EQ(bits(score_sm90(broadcast, key.data(), 1.0F)), oracle_sm90(broadcast, key.data(), 1.0F));
}

}  // namespace
}  // namespace dosa::test
