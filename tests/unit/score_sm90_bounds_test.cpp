// The error bounds of docs/sm90.md (S2 .. S10) in exact arithmetic, on random, hostile and recorded inputs, with the
// cases that attain or nearly attain them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "contract/window.hpp"
#include "cpu/float_environment.hpp"
#include "golden/vector_file.hpp"
#include "score/score.hpp"
#include "support/shared_data.hpp"
#include "unit/score_inputs.hpp"
#include "unit/score_oracles.hpp"

namespace dosa::test {
namespace {

// Everything is an integer in units of 2^-25, the least u of a chain that starts at zero (E >= -12).
constexpr int kUnit = -25;

std::int64_t units_of(float accumulator) { return static_cast<std::int64_t>(std::ldexp(accumulator, -kUnit)); }

Number integer(std::int64_t units) {
  Number n;
  n.negative = units < 0;
  n.magnitude = std::llabs(units);
  n.exponent = kUnit;
  return n;
}
Number scaled(std::int64_t factor, const Number& x) {
  Number n;
  n.negative = factor < 0;
  n.magnitude = std::llabs(factor);
  return exact_product(n, x);
}
Number absolute(Number n) {
  n.negative = false;
  return n;
}
Number minus(Number n) {
  n.negative = !n.negative;
  return n;
}
bool less_or_equal(const Number& a, const Number& b) {
  const Number difference = exact_sum(b, minus(a));
  return difference.magnitude == 0 || !difference.negative;
}

Number times_2_to(int exponent, Number n) {
  n.exponent += exponent;
  return n;
}

struct Chain {
  std::int64_t exact = 0, acc = 0;    // sum of the products; what the tensor core keeps
  std::int64_t below = 0, above = 0;  // S4: exact - below <= acc <= exact + above
  std::int64_t prior = 0;             // S6 without its factor 2^-13: (33 S - 1) M
  std::int64_t counted = 0;           // S7 without its factor 2^-13
  Number prefixes;                    // S8
};

// Follows a chain by the rule, checking S2, S3 and S5 at every step. Finite codes.
void follow(const std::uint8_t* a, const std::uint8_t* b, int dim, Chain& chain) {
  float c = 0.0F;
  std::int64_t largest_power = 0, largest_sum = 0, magnitudes = 0;  // B, max |T_s|, A_s
  const int steps = dim / 32;
  for (int s = 0; s < steps; ++s) {
    std::int64_t terms[33], granularity[33], power = 0, exact_sum_of_step = 0, step_products = 0;
    for (int i = 0; i < 32; ++i) {
      const Number x = number_of_code(a[32 * s + i]), y = number_of_code(b[32 * s + i]);
      const int e = x.exponent + y.exponent + 6;
      const auto magnitude = static_cast<std::int64_t>(x.magnitude * y.magnitude) << (e - 6 - kUnit);
      terms[i] = x.negative != y.negative ? -magnitude : magnitude;
      granularity[i] = magnitude == 0 ? 0 : std::int64_t{1} << (e - kUnit);  // 2^e
      power = std::max(power, granularity[i]);
      step_products += terms[i];
      magnitudes += magnitude;
    }
    chain.exact += step_products;
    largest_power = std::max(largest_power, power);
    const std::int64_t product_power = power;  // B_s
    terms[32] = units_of(c);
    granularity[32] =
        terms[32] == 0 ? 0 : std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(std::llabs(terms[32]))) - 1);
    if (power == 0) {  // no nonzero product: nothing changes, whatever c is
      ASSERT_EQ(std::bit_cast<std::uint32_t>(sm90_accumulate(a + 32 * s, b + 32 * s, c)),
                std::bit_cast<std::uint32_t>(c));
      continue;
    }
    power = std::max(power, granularity[32]);  // 2^E
    const std::int64_t u = power >> 13;
    ASSERT_EQ(u << 13, power);
    std::int64_t total = 0, positive = 0, negative = 0;
    for (int i = 0; i < 33; ++i) {
      const std::int64_t kept = terms[i] / u * u;
      total += kept;
      exact_sum_of_step += terms[i];
      if (kept == terms[i]) continue;
      ASSERT_LT(std::llabs(terms[i] - kept), u);
      ASSERT_LE(granularity[i], i < 32 ? power >> 8 : power >> 1);  // S2: only these may lose bits
      (terms[i] > 0 ? positive : negative) += 1;
    }
    ASSERT_LE(positive + negative, s == 0 ? 31 : 32);
    int j = 0;
    while (std::llabs(total) >= power << (j + 1)) ++j;
    ASSERT_LE(j, 6);
    const std::int64_t rho = (u << j) - u;
    // S8 from the exact sums before and after this step.
    const std::int64_t before = chain.exact - step_products;
    const Number reach = exact_sum(integer(std::llabs(before)), chain.prefixes);
    const Number unit = times_2_to(-13, less_or_equal(integer(product_power), reach) ? reach : integer(product_power));
    const Number cut = scaled(s == 0 ? 31 : 32, unit);
    const Number sum = exact_sum(exact_sum(integer(std::llabs(chain.exact)), chain.prefixes), cut);
    chain.prefixes = exact_sum(exact_sum(chain.prefixes, cut), times_2_to(-13, sum));
    c = sm90_accumulate(a + 32 * s, b + 32 * s, c);
    const std::int64_t lost = total - units_of(c);
    ASSERT_GE(total > 0 ? lost : -lost, 0);
    ASSERT_LE(std::llabs(lost), rho);  // S3
    ASSERT_LE(std::llabs(lost) << 13, std::llabs(total));
    ASSERT_LE(std::llabs(total), magnitudes);  // S5
    chain.below += positive * u + (total > 0 ? rho : 0);
    chain.above += negative * u + (total < 0 ? rho : 0);
    largest_sum = std::max<std::int64_t>(largest_sum, std::llabs(total));
    chain.counted += (s == 0 ? 76 : 78) * power;
    ASSERT_LT(std::llabs(exact_sum_of_step - units_of(c)), (s == 0 ? 76 : 78) * u);  // S7
  }
  chain.acc = units_of(c);
  chain.prior = (33 * steps - 1) * std::max(largest_power, largest_sum);
  ASSERT_LE(chain.exact - chain.below, chain.acc);
  ASSERT_LE(chain.acc, chain.exact + chain.above);
  ASSERT_LE(std::llabs(chain.acc - chain.exact) << 13, chain.prior);
  ASSERT_LE(std::llabs(chain.acc - chain.exact) << 13, chain.counted);
  ASSERT_TRUE(less_or_equal(integer(std::llabs(chain.acc - chain.exact)), chain.prefixes));
}

TEST(ScoreSm90Bounds, HoldForHostileChains) {
  Inputs inputs(901);
  for (int trial = 0; trial < 20000; ++trial) {
    const int dim = 32 * (1 + static_cast<int>(inputs.below(8)));
    const int families[] = {1, 2, 3, 4, 5, 6, 8};
    const auto a = inputs.codes(static_cast<std::size_t>(dim), families[inputs.below(7)]);
    const auto b = inputs.codes(static_cast<std::size_t>(dim), families[inputs.below(7)]);
    Chain chain;
    follow(a.data(), b.data(), dim, chain);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
}

// 1.75 * 1.75 counts as exponent 0 (u = 2^-13) but has two bits before the point: an odd number of units loses one, and
// S3 allows no more.
TEST(ScoreSm90Bounds, FinalCutAttainsItsBound) {
  std::uint8_t a[32] = {}, b[32] = {};
  a[0] = 0x3e, b[0] = 0x3e;
  a[1] = 0x01, b[1] = 0x18;  // 2^-9 * 2^-4: one unit
  Chain chain;
  follow(a, b, 32, chain);
  EXPECT_EQ(chain.exact - chain.acc, chain.below);
  EXPECT_EQ(chain.below, std::int64_t{1} << (-13 - kUnit));
}

// One product of 2^16 and 31 of 7.5 a chunk lose 7.5 each; the signed bound counts u or more for each.
TEST(ScoreSm90Bounds, CountOfLosingTermsIsNearlyAttained) {
  std::uint8_t a[128], b[128];
  for (int d = 0; d < 128; ++d) {
    a[d] = d % 32 == 0 ? 0x78 : 0x42;  // 256, 2.5
    b[d] = d % 32 == 0 ? 0x78 : 0x44;  // 256, 3
  }
  Chain chain;
  follow(a, b, 128, chain);
  EXPECT_EQ(chain.exact - chain.acc, std::int64_t{930} << -kUnit);
  EXPECT_EQ(chain.below, std::int64_t{1512} << -kUnit);
}

// S10 multiplied by 2^24 - n, so that gamma = n / (2^24 - n) needs no division. Returns false where it does not apply.
bool check_score(const ScoreRow& row, const std::uint8_t* key, float key_scale) {
  const auto nan = [&](const std::uint8_t* codes) { return std::any_of(codes, codes + row.head_dim, e4m3_is_nan); };
  const float score = score_sm90(row, key, key_scale);
  if (nan(key) || !std::isfinite(key_scale)) return false;
  const int padded = (std::max(row.heads, 16) + 7) / 8 * 8, n = padded / 8 + 4;
  const std::int64_t whole = std::int64_t{1} << 24, rest = whole - n;
  Number low, high, sizes,
      served;  // sums over heads of w r: least, largest; of |w| times the largest r, times r itself
  for (int h = 0; h < row.heads; ++h) {
    const std::uint8_t* q = row.q + h * row.head_stride;
    const float weight = row.weights[h * row.weight_stride];
    if (!std::isfinite(weight) || nan(q)) return false;
    Chain chain;
    follow(q, key, row.head_dim, chain);
    const Number w = number_of(weight);
    const Number least = integer(std::max<std::int64_t>(chain.exact - chain.below, 0));
    const Number most = integer(std::max<std::int64_t>(chain.exact + chain.above, 0));
    low = exact_sum(low, exact_product(w, w.negative ? most : least));
    high = exact_sum(high, exact_product(w, w.negative ? least : most));
    sizes = exact_sum(sizes, exact_product(absolute(w), most));
    served = exact_sum(served, exact_product(absolute(w), integer(std::max<std::int64_t>(chain.acc, 0))));
  }
  const Number k = number_of(key_scale), one = number_of(1.0F);
  const Number tiny = times_2_to(-150, one);
  const Number reach =
      exact_product(exact_sum(served, scaled(row.heads, tiny)), less_or_equal(one, absolute(k)) ? absolute(k) : one);
  const bool fits = !less_or_equal(times_2_to(127, scaled(rest, one)), scaled(whole, reach));
  EXPECT_TRUE(!fits || std::isfinite(score));  // S11
  if (!std::isfinite(score)) return false;
  if (k.negative) std::swap(low, high);
  // (H |k| + 4) (1 + gamma) 2^-150
  const Number underflow =
      exact_product(exact_sum(scaled(row.heads, absolute(k)), number_of(4.0F)), scaled(whole, tiny));
  const Number slack = exact_sum(scaled(n, exact_product(absolute(k), sizes)), underflow);
  const Number value = scaled(rest, number_of(score));
  EXPECT_TRUE(less_or_equal(exact_sum(scaled(rest, exact_product(k, low)), minus(slack)), value));
  EXPECT_TRUE(less_or_equal(value, exact_sum(scaled(rest, exact_product(k, high)), slack)));
  return true;
}

TEST(ScoreSm90Bounds, HoldForHostileScores) {
  const cpu::FloatEnvironment environment;
  Inputs inputs(902);
  int checked = 0;
  for (int trial = 0; trial < 2500 && !HasFailure(); ++trial) {
    const int heads = 1 + static_cast<int>(inputs.below(40)), dim = 32 * (1 + static_cast<int>(inputs.below(2)));
    const int families[] = {1, 2, 3, 4, 5, 6, 8};
    const auto q = inputs.codes(static_cast<std::size_t>(heads * dim), families[inputs.below(7)]);
    const auto key = inputs.codes(static_cast<std::size_t>(dim), families[inputs.below(7)]);
    const int numbers[] = {0, 0, 3, 5, 4, 2};
    const auto weights = inputs.numbers(static_cast<std::size_t>(heads), numbers[trial % 6]);
    const float key_scale = inputs.number(numbers[inputs.below(6)]);
    if (check_score({q.data(), dim, weights.data(), 1, heads, dim}, key.data(), key_scale)) ++checked;
  }
  EXPECT_GT(checked, 1200);
}

TEST(ScoreSm90Bounds, HoldForRecordedScores) {
  DOSA_SHARED_FOLDER(folder, "vectors");
  std::int64_t seen = 0, checked = 0;
  for (const auto& path : vector_files(folder, false)) {
    const RecordedLogits recorded{VectorFile(path)};
    for (std::int64_t t = 0; t < recorded.queries && !HasFailure(); ++t) {
      const auto at = static_cast<std::size_t>(t);
      const Window window = window_of(recorded.ks.at(at), recorded.ke.at(at), recorded.keys);
      const ScoreRow row{recorded.q.data() + t * recorded.heads * recorded.head_dim,
                         recorded.head_dim,
                         recorded.weights.data() + t * recorded.heads,
                         1,
                         static_cast<std::int32_t>(recorded.heads),
                         static_cast<std::int32_t>(recorded.head_dim)};
      for (std::int64_t i = window.first; i < window.last; ++i) {
        if (seen++ % 61 != 0) continue;  // a tenth of a second each thousand
        if (check_score(row, recorded.k.data() + i * recorded.head_dim,
                        recorded.k_scale.at(static_cast<std::size_t>(i)))) {
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 2000);
}

}  // namespace
}  // namespace dosa::test
