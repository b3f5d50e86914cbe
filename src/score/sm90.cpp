// Score model `sm90`: what DeepGEMM's fp8_mqa_logits and fp8_paged_mqa_logits compute on Hopper (docs/sm90.md).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "score/e4m3.hpp"
#include "score/score.hpp"

namespace dosa {
namespace {

constexpr int kMaxDim = 256;
constexpr int kMaxHeads = 128;
constexpr int kChunk = 32;         // products of one wgmma k-step
constexpr int kFractionBits = 13;  // kept below the leading bit of an accumulator

constexpr double power_of_two(int exponent) noexcept {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52U);
}

// floor(log2 |c|); every F32 number but 0 is a normal binary64.
int floor_log2(double c) noexcept { return static_cast<int>((std::bit_cast<std::uint64_t>(c) >> 52U) & 0x7ffU) - 1023; }

const float kNan = std::bit_cast<float>(0x7fffffffU);

// Codes taken apart; arrays, so that the compiler can use what vectors the baseline has.
struct Decoded {
  float value[kMaxDim];
  std::int16_t exponent[kMaxDim];
  bool nan;

  void decode(const std::uint8_t* codes, int count) noexcept {
    nan = false;
    for (int d = 0; d < count; ++d) {
      value[d] = static_cast<float>(e4m3_unit_values[codes[d]]) * 0x1p-9F;
      exponent[d] = e4m3_parts[codes[d]].exponent;
      nan |= e4m3_is_nan(codes[d]);
    }
  }
};

// One k-step over products first..first+31 of finite codes and a finite c.
float accumulate(const Decoded& a, const Decoded& b, int first, float c) noexcept {
  // E: the largest unnormalised exponent. A zero factor pulls the sum below every nonzero product's.
  std::int16_t product_exponent = 2 * kE4m3NoExponent;
  for (int i = first; i < first + kChunk; ++i) {
    product_exponent = std::max(product_exponent, static_cast<std::int16_t>(a.exponent[i] + b.exponent[i]));
  }
  const bool any_product = product_exponent >= kE4m3LeastProductExponent;
  if (!any_product && c == 0) return 0.0F;
  int e = product_exponent;
  if (c != 0) e = any_product ? std::max(e, floor_log2(static_cast<double>(c))) : floor_log2(static_cast<double>(c));

  // Everything in units of u = 2^(E-13), each term cut toward zero on its own, as the conversions do. Products are
  // exact in F32, and below 225 * 2^7 units, so the whole sum fits 32 bits.
  std::int32_t sum = static_cast<std::int32_t>(static_cast<double>(c) * power_of_two(kFractionBits - e));
  if (any_product) {
    const float units = static_cast<float>(power_of_two(kFractionBits - e));
    for (int i = first; i < first + kChunk; ++i) sum += static_cast<std::int32_t>(a.value[i] * b.value[i] * units);
  }

  // The sum itself is cut toward zero to 1 + 13 significant bits.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(std::abs(sum));
  const int excess = std::max(static_cast<int>(std::bit_width(magnitude)) - (kFractionBits + 1), 0);
  const auto kept = static_cast<std::int32_t>((magnitude >> excess) << excess);
  return static_cast<float>(static_cast<double>(sum < 0 ? -kept : kept) * power_of_two(e - kFractionBits));
}

float served_relu(float acc) noexcept { return acc > 0 ? acc : 0.0F; }  // max(0, x) of the device: NaN becomes +0

}  // namespace

float sm90_accumulate(const std::uint8_t* a, const std::uint8_t* b, float c) noexcept {
  Decoded left, right;
  left.decode(a, kChunk);
  right.decode(b, kChunk);
  if (left.nan || right.nan || !std::isfinite(c)) return kNan;  // no accumulator of a chain is infinite
  return accumulate(left, right, 0, c);
}

float score_sm90(const ScoreRow& row, const std::uint8_t* key, float key_scale) noexcept {
  // Padding heads (code 0, weight -0) up to what the kernel's reduction needs change no bit: their term is -0, and -0
  // is the identity of the addition.
  const int padded = (std::max(row.heads, 16) + 7) / 8 * 8;
  float relu[kMaxHeads], weight[kMaxHeads];

  Decoded k, q;
  k.decode(key, row.head_dim);
  for (int h = 0; h < row.heads; ++h) {
    q.decode(row.q + h * row.head_stride, row.head_dim);
    float acc = 0.0F;
    if (k.nan || q.nan) {
      acc = kNan;
    } else {
      for (int first = 0; first < row.head_dim; first += kChunk) acc = accumulate(q, k, first, acc);
    }
    relu[h] = served_relu(acc);
    weight[h] = row.weights[h * row.weight_stride];
  }
  for (int h = row.heads; h < padded; ++h) {
    relu[h] = 0.0F;
    weight[h] = -0.0F;
  }

  // Lane t of a quad owns heads 8g + 2t and 8g + 2t + 1 of every group g of eight. Group 1 comes first: the compiler
  // contracted w0 * r0 + w1 * r1.
  const auto chain = [&](int lane) {
    float sum = weight[8 + lane] * relu[8 + lane];
    sum = std::fma(weight[lane], relu[lane], sum);
    for (int h = 16 + lane; h < padded; h += 8) sum = std::fma(weight[h], relu[h], sum);
    return sum;
  };
  const auto part = [&](int t) { return (chain(2 * t) + chain(2 * t + 1)) * key_scale; };
  const float score = (part(0) + part(1)) + (part(2) + part(3));
  return std::isnan(score) ? kNan : score;
}

}  // namespace dosa
