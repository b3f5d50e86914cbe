// Both score models bit for bit in plain C++: lanes are heads, in arrays that the compiler turns into what vectors the
// baseline has. Nothing here depends on a rounding mode but the chains over the heads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cpu/model_rows.hpp"
#include "cpu/model_scores.hpp"
#include "score/e4m3.hpp"

namespace dosa::cpu::portable {
namespace {

constexpr int kLanes = 16;
constexpr RowLayout kLayout{kLanes, 1, false};
constexpr int kChunk = 32;

struct Key {
  float value[kMaxDim];  // value * 2^-8; NaN codes count as 0
  std::uint8_t exponent[kMaxDim];
  bool nan;
};

void decode(const std::uint8_t* codes, int head_dim, Key* key) {
  key->nan = false;
  for (int d = 0; d < head_dim; ++d) {
    const std::int32_t units = e4m3_unit_values[codes[d]];  // of 2^-9
    key->value[d] = static_cast<float>(units) * 0x1p-17F;
    key->exponent[d] = static_cast<std::uint8_t>(units == 0 ? 0 : kExponentBias + e4m3_parts[codes[d]].exponent);
    key->nan |= e4m3_is_nan(codes[d]);
  }
}

float canonical(float score) { return std::isnan(score) ? std::bit_cast<float>(0x7fffffffU) : score; }

// Exact: products and sums of E4M3 values need 44 bits.
void dots_f64(const double* q, const Key& key, int head_dim, double* relu) {
  double sum[kLanes] = {};
  for (int d = 0; d < head_dim; ++d, q += kLanes) {
    const double value = static_cast<double>(key.value[d]);
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += q[lane] * value;
  }
  for (int lane = 0; lane < kLanes; ++lane) relu[lane] = sum[lane] > 0 ? sum[lane] : 0.0;
}

float score_f64(const F64Row& row, int heads, int head_dim, const Key& key, float key_scale) {
  if (row.nan || key.nan) return std::bit_cast<float>(0x7fffffffU);
  double relu[kMaxHeads];
  for (int h = 0; h < heads; h += kLanes)
    dots_f64(row.q + static_cast<std::ptrdiff_t>(h) * head_dim, key, head_dim, relu + h);
  double acc = 0.0;
  for (int h = 0; h < heads; ++h) acc = std::fma(row.weights[h], relu[h], acc);
  return canonical(static_cast<float>(static_cast<double>(key_scale) * acc));
}

// Accumulators of 16 heads: every term scaled to units of u = 2^(E-13) (exact) and converted to an integer, which cuts
// toward zero.
void accumulators(const float* q, const std::uint8_t* exponents, const Key& key, int head_dim, float* relu) {
  float c[kLanes] = {};
  for (int first = 0; first < head_dim; first += kChunk) {
    std::uint8_t largest[kLanes];
    std::fill(std::begin(largest), std::end(largest), kNoProduct);
    for (int d = first; d < first + kChunk; ++d) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const auto sum = static_cast<std::uint8_t>(exponents[d * kLanes + lane] + key.exponent[d]);
        largest[lane] = largest[lane] > sum ? largest[lane] : sum;
      }
    }
    float per_unit[kLanes], unit[kLanes];  // 2^(13-E), 2^(E-13)
    std::int32_t sum[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int field = static_cast<int>((std::bit_cast<std::uint32_t>(c[lane]) >> 23U) & 255U);  // of c; 0 for c = 0
      const int products = largest[lane] + 127 - 2 * kExponentBias;
      const int e = products > field ? products : field;  // E + 127
      per_unit[lane] = std::bit_cast<float>(static_cast<std::uint32_t>(267 - e) << 23U);
      unit[lane] = std::bit_cast<float>(static_cast<std::uint32_t>(e - 13) << 23U);
      sum[lane] = static_cast<std::int32_t>(c[lane] * per_unit[lane]);
    }
    for (int d = first; d < first + kChunk; ++d) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sum[lane] += static_cast<std::int32_t>(q[d * kLanes + lane] * key.value[d] * per_unit[lane]);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      // |sum| < 2^20 is exact in F32; clearing 10 mantissa bits leaves 1 + 13.
      const float exact = static_cast<float>(sum[lane]);
      c[lane] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(exact) & 0xfffffc00U) * unit[lane];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) relu[lane] = c[lane] > 0 ? c[lane] : 0.0F;
}

float score_sm90(const Sm90Row& row, int heads, int head_dim, const Key& key, float key_scale) {
  float relu[kMaxHeads] = {};  // a NaN code makes NaN accumulators, of which the served relu makes +0
  for (int h = 0; h < heads && !key.nan; h += kLanes) {
    const std::ptrdiff_t skip = static_cast<std::ptrdiff_t>(h) * head_dim;
    accumulators(row.values + skip, row.exponents + skip, key, head_dim, relu + h);
  }
  // Lane l of the kernel owns heads 8g + l, group 1 first; -0 is the identity that starts a chain.
  float chain[8];
  for (int lane = 0; lane < 8; ++lane) {
    float sum = heads > 8 ? std::fma(row.weights[8 + lane], relu[8 + lane], -0.0F) : -0.0F;
    sum = std::fma(row.weights[lane], relu[lane], sum);
    for (int h = 16 + lane; h < (heads + 7) / 8 * 8; h += 8) sum = std::fma(row.weights[h], relu[h], sum);
    chain[lane] = sum;
  }
  float part[4];
  for (int t = 0; t < 4; ++t) part[t] = (chain[2 * t] + chain[2 * t + 1]) * key_scale;
  return canonical((part[0] + part[1]) + (part[2] + part[3]));
}

}  // namespace

std::size_t model_bytes(ScoreModel model, int heads, int head_dim) {
  return row_bytes(model, kLayout, heads, head_dim);
}

void model_row(ScoreModel model, const ScoreRow& row, std::byte* memory) { fill_row(model, kLayout, row, memory); }

void model_scores(ScoreModel model, const ScoreRow& row, const std::byte* memory, const KeySource& keys,
                  const std::int32_t* index, std::int64_t first, std::int64_t count, float* scores) {
  const bool f64 = model == ScoreModel::f64;
  const F64Row row64 = f64 ? f64_row(kLayout, row.heads, row.head_dim, memory) : F64Row{};
  const Sm90Row row90 = f64 ? Sm90Row{} : sm90_row(kLayout, row.heads, row.head_dim, memory);
  KeyAddress at[kKeyBlock];
  int place[kKeyBlock];
  for (std::int64_t done = 0; done < count; done += kKeyBlock) {
    const int block = count - done < kKeyBlock ? static_cast<int>(count - done) : kKeyBlock;
    const int valid = locate_block(keys, index != nullptr ? index + done : nullptr, first + done, block, at, place);
    for (int j = 0; j < block; ++j) scores[done + j] = std::bit_cast<float>(0x7fffffffU);
    for (int j = 0; j < valid; ++j) {
      Key key;
      decode(at[j].codes, row.head_dim, &key);
      scores[done + place[j]] = f64 ? score_f64(row64, row.heads, row.head_dim, key, *at[j].scale)
                                    : score_sm90(row90, row.heads, row.head_dim, key, *at[j].scale);
    }
  }
}

}  // namespace dosa::cpu::portable
