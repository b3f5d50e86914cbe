// Both score models bit for bit on AVX2 with FMA and F16C. The method is that of model_scores_avx512.cpp; AVX2 has no
// rounding mode in the instruction, so the accumulators of sm90 run with MXCSR set toward zero.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/model_rows.hpp"
#include "cpu/model_scores.hpp"

namespace dosa::cpu::avx2 {
namespace {

constexpr RowLayout kF64Layout{4, 2, false};
constexpr RowLayout kSm90Layout{8, 4, true};
constexpr int kChunk = 32;

inline __m128i load_half(const std::uint8_t* codes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)); }

inline __m256i load_codes(const std::uint8_t* codes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
}

// value * 2^-8 of 16 codes: E4M3 bits moved into FP16 fields, subnormals included (a NaN code becomes a finite number).
inline void as_floats(__m128i codes, __m256* low, __m256* high) {
  const __m256i wide = _mm256_cvtepu8_epi16(codes);
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  const __m256i half = _mm256_or_si256(magnitude, sign);
  *low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
  *high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

inline bool any_nan(__m256i codes) {
  const __m256i nan = _mm256_set1_epi8(0x7f);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan)) != 0;
}

inline float nan_score() { return __builtin_bit_cast(float, 0x7fffffffU); }

// ---- f64 ----

constexpr int kF64Tile = 6;

// value * 2^-8 of every code; true where a code is NaN.
inline bool decode_f64(const std::uint8_t* codes, int head_dim, double* out) {
  bool nan = false;
  for (int d = 0; d < head_dim; d += 32) nan |= any_nan(load_codes(codes + d));
  for (int d = 0; d < head_dim; d += 16) {
    __m256 low, high;
    as_floats(load_half(codes + d), &low, &high);
    _mm256_storeu_pd(out + d, _mm256_cvtps_pd(_mm256_castps256_ps128(low)));
    _mm256_storeu_pd(out + d + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)));
    _mm256_storeu_pd(out + d + 8, _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
    _mm256_storeu_pd(out + d + 12, _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
  }
  return nan;
}

// relu(dot) of Vectors * 4 heads for Tile keys at values[key * kMaxDim ..], to relu[key * kMaxHeads ..].
template <int Vectors, int Tile>
inline void dots_f64(const double* q, const double* values, int head_dim, double* relu) {
  __m256d sum[Tile][Vectors];
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) sum[j][v] = _mm256_setzero_pd();
  }
  for (int d = 0; d < head_dim; ++d) {
    __m256d row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = _mm256_loadu_pd(q + (static_cast<std::ptrdiff_t>(d) * Vectors + v) * 4);
    for (int j = 0; j < Tile; ++j) {
      const __m256d key = _mm256_set1_pd(values[j * kMaxDim + d]);
      for (int v = 0; v < Vectors; ++v) sum[j][v] = _mm256_fmadd_pd(row[v], key, sum[j][v]);
    }
  }
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_pd(relu + j * kMaxHeads + v * 4, _mm256_max_pd(sum[j][v], _mm256_setzero_pd()));
    }
  }
}

template <int Tile>
inline void tile_f64(const F64Row& row, int heads, int head_dim, const KeyAddress* keys, float* scores) {
  alignas(32) double values[Tile * kMaxDim];
  alignas(32) double relu[Tile * kMaxHeads];
  bool nan[Tile];
  for (int j = 0; j < Tile; ++j) nan[j] = decode_f64(keys[j].codes, head_dim, values + j * kMaxDim);
  const double* q = row.q;
  int h = 0;
  int vectors = (heads + 3) / 4;  // in the groups of RowLayout
  for (; vectors >= 2; vectors -= 2, h += 8, q += std::ptrdiff_t{8} * head_dim) {
    dots_f64<2, Tile>(q, values, head_dim, relu + h);
  }
  if (vectors == 1) dots_f64<1, Tile>(q, values, head_dim, relu + h);

  double acc[Tile] = {};
  for (h = 0; h < heads; ++h) {
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the analyzer does not see that the groups cover all heads
    for (int j = 0; j < Tile; ++j) acc[j] = __builtin_fma(row.weights[h], relu[j * kMaxHeads + h], acc[j]);
  }
  for (int j = 0; j < Tile; ++j) {
    const double scaled = static_cast<double>(*keys[j].scale) * acc[j];
    scores[j] = nan[j] || __builtin_isnan(scaled) ? nan_score() : static_cast<float>(scaled);
  }
}

// ---- sm90 ----

constexpr int kSm90Tile = 4;

struct Sm90Key {
  alignas(32) float value[kMaxDim];             // value * 2^-8
  alignas(32) std::uint32_t exponent[kMaxDim];  // kExponentBias + e (0 for a zero code) in all four bytes
  alignas(32) std::int32_t swap[kMaxDim];       // 8 (floats) where the value is negative, else 0
};

inline void decode_sm90(const std::uint8_t* codes, int head_dim, Sm90Key* key) {
  bool nan = false;
  for (int d = 0; d < head_dim; d += 32) nan |= any_nan(load_codes(codes + d));
  for (int d = 0; d < head_dim; d += 16) {
    // A key with a NaN code has NaN accumulators, of which the served relu makes +0: the same as an all-zero key.
    const __m128i raw = nan ? _mm_setzero_si128() : load_half(codes + d);
    __m256 low, high;
    as_floats(raw, &low, &high);
    _mm256_storeu_ps(key->value + d, low);
    _mm256_storeu_ps(key->value + d + 8, high);
    const __m128i field = _mm_and_si128(_mm_srli_epi16(raw, 3), _mm_set1_epi8(15));
    const __m128i exponent = _mm_add_epi8(_mm_max_epu8(field, _mm_set1_epi8(1)), _mm_set1_epi8(kExponentBias - 7));
    const __m128i zero = _mm_cmpeq_epi8(_mm_and_si128(raw, _mm_set1_epi8(0x7f)), _mm_setzero_si128());
    const __m128i present = _mm_andnot_si128(zero, exponent);
    for (int part = 0; part < 2; ++part) {
      const __m128i bytes = part == 0 ? present : _mm_srli_si128(present, 8);
      const __m128i signs = part == 0 ? raw : _mm_srli_si128(raw, 8);
      const __m256i four = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x01010101));
      const __m256i swap = _mm256_and_si256(_mm256_srli_epi32(_mm256_cvtepu8_epi32(signs), 4), _mm256_set1_epi32(8));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(key->exponent + d + part * 8), four);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(key->swap + d + part * 8), swap);
    }
  }
}

// Largest biased product exponent of each of Vectors * 8 heads over one chunk, widened to 32 bits.
template <int Vectors>
inline void product_exponents(const std::uint8_t* row, const std::uint32_t* key, __m256i (&out)[Vectors]) {
  if constexpr (Vectors == 4) {
    __m256i largest = _mm256_set1_epi8(kNoProduct);
    for (int d = 0; d < kChunk; ++d) {
      const __m256i sum = _mm256_add_epi8(load_codes(row + d * 32), _mm256_set1_epi32(static_cast<int>(key[d])));
      largest = _mm256_max_epu8(largest, sum);
    }
    const __m128i low = _mm256_castsi256_si128(largest), high = _mm256_extracti128_si256(largest, 1);
    out[0] = _mm256_cvtepu8_epi32(low);
    out[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(low, 8));
    out[2] = _mm256_cvtepu8_epi32(high);
    out[3] = _mm256_cvtepu8_epi32(_mm_srli_si128(high, 8));
  } else {
    __m128i largest = _mm_set1_epi8(kNoProduct);
    for (int d = 0; d < kChunk; ++d) {
      const __m128i exponents =
          Vectors == 2 ? load_half(row + d * 16) : _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + d * 8));
      largest = _mm_max_epu8(largest, _mm_add_epi8(exponents, _mm_set1_epi32(static_cast<int>(key[d]))));
    }
    out[0] = _mm256_cvtepu8_epi32(largest);
    if constexpr (Vectors == 2) out[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(largest, 8));
  }
}

// relu of the accumulators of Vectors * 8 heads for one key. MXCSR rounds toward zero.
template <int Vectors>
inline void accumulators(const float* q, const std::uint8_t* exponents, const Sm90Key& key, int head_dim, float* relu) {
  const __m256 zero = _mm256_setzero_ps();
  __m256 c[Vectors];
  for (int v = 0; v < Vectors; ++v) c[v] = zero;
  for (int first = 0; first < head_dim; first += kChunk) {
    __m256i largest[Vectors];
    product_exponents<Vectors>(exponents + static_cast<std::ptrdiff_t>(first) * Vectors * 8, key.exponent + first,
                               largest);
    __m256 up[Vectors], down[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      // E + 127, the larger of the products' (biased by 2 * kExponentBias) and c's own exponent field (0 for c = 0).
      const __m256i field = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(c[v]), 23), _mm256_set1_epi32(255));
      const __m256i e =
          _mm256_max_epi32(_mm256_add_epi32(largest[v], _mm256_set1_epi32(127 - 2 * kExponentBias)), field);
      // M = 2^23 u = 2^(E+10).
      const __m256 m = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(10)), 23));
      up[v] = _mm256_add_ps(m, _mm256_max_ps(c[v], zero));
      down[v] = _mm256_sub_ps(_mm256_min_ps(c[v], zero), m);
    }
    const float* row = q + static_cast<std::ptrdiff_t>(first) * Vectors * 16;
#pragma GCC unroll 4
    for (int d = 0; d < kChunk; ++d, row += Vectors * 16) {
      const __m256 value = _mm256_set1_ps(key.value[first + d]);
      const float* same = row + key.swap[first + d];  // heads whose product is nonnegative
      const float* opposite = row + 8 - key.swap[first + d];
      for (int v = 0; v < Vectors; ++v) {
        up[v] = _mm256_fmadd_ps(_mm256_loadu_ps(same + v * 16), value, up[v]);
        down[v] = _mm256_fmadd_ps(_mm256_loadu_ps(opposite + v * 16), value, down[v]);
      }
    }
    for (int v = 0; v < Vectors; ++v) {
      const __m256 sum = _mm256_add_ps(up[v], down[v]);
      c[v] = _mm256_and_ps(sum, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xfffffc00U))));
    }
  }
  for (int v = 0; v < Vectors; ++v) _mm256_storeu_ps(relu + v * 8, _mm256_max_ps(c[v], zero));
}

// A call of its own, memory to memory: the compiler does not know MXCSR and must not move an operation out of its
// reach.
__attribute__((noinline)) void accumulate_toward_zero(const Sm90Row& row, int heads, int head_dim, const Sm90Key* keys,
                                                      int count, float* relu) {
  for (int j = 0; j < count; ++j, relu += kMaxHeads) {
    std::ptrdiff_t h = 0;
    int vectors = (heads + 7) / 8;  // in the groups of RowLayout
    for (; vectors >= 4; vectors -= 4, h += 32) {
      accumulators<4>(row.values + 2 * h * head_dim, row.exponents + h * head_dim, keys[j], head_dim, relu + h);
    }
    if (vectors >= 2) {
      accumulators<2>(row.values + 2 * h * head_dim, row.exponents + h * head_dim, keys[j], head_dim, relu + h);
      vectors -= 2, h += 16;
    }
    if (vectors == 1) {
      accumulators<1>(row.values + 2 * h * head_dim, row.exponents + h * head_dim, keys[j], head_dim, relu + h);
    }
  }
}

// The kernel's order: chain of lane l over head groups 1, 0, 2, 3, ..; -0 is the identity that starts it, and what
// padding heads add.
inline float reduce(const float* weights, const float* relu, int heads, float key_scale) {
  __m256 chain = _mm256_set1_ps(-0.0F);
  if (heads > 8) chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights + 8), _mm256_loadu_ps(relu + 8), chain);
  chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights), _mm256_loadu_ps(relu), chain);
  for (int h = 16; h < heads; h += 8) {
    chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights + h), _mm256_loadu_ps(relu + h), chain);
  }
  const __m256 pairs = _mm256_add_ps(chain, _mm256_movehdup_ps(chain));  // lanes 0, 2, 4, 6: s(t,0) + s(t,1)
  const __m256 parts = _mm256_mul_ps(pairs, _mm256_set1_ps(key_scale));
  const __m256 sums = _mm256_add_ps(parts, _mm256_permute_ps(parts, 0x4e));  // lanes 0, 4: part 0 + 1, part 2 + 3
  const __m128 score = _mm_add_ss(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  const float value = _mm_cvtss_f32(score);
  return __builtin_isnan(value) ? nan_score() : value;
}

inline void tile_sm90(const Sm90Row& row, int heads, int head_dim, const KeyAddress* addresses, int count,
                      float* scores) {
  Sm90Key keys[kSm90Tile];
  alignas(32) float relu[kSm90Tile * kMaxHeads];
  for (int j = 0; j < count; ++j) decode_sm90(addresses[j].codes, head_dim, &keys[j]);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr((mode & ~unsigned{_MM_ROUND_MASK}) | _MM_ROUND_TOWARD_ZERO);
  accumulate_toward_zero(row, heads, head_dim, keys, count, relu);
  _mm_setcsr(mode);
  for (int j = 0; j < count; ++j) {
    scores[j] = reduce(row.weights, relu + j * kMaxHeads, heads, *addresses[j].scale);
  }
}

}  // namespace

std::size_t model_bytes(ScoreModel model, int heads, int head_dim) {
  return row_bytes(model, model == ScoreModel::f64 ? kF64Layout : kSm90Layout, heads, head_dim);
}

void model_row(ScoreModel model, const ScoreRow& row, std::byte* memory) {
  fill_row(model, model == ScoreModel::f64 ? kF64Layout : kSm90Layout, row, memory);
}

void model_scores(ScoreModel model, const ScoreRow& row, const std::byte* memory, const KeySource& keys,
                  const std::int32_t* index, std::int64_t first, std::int64_t count, float* scores) {
  const bool f64 = model == ScoreModel::f64;
  const F64Row row64 = f64 ? f64_row(kF64Layout, row.heads, row.head_dim, memory) : F64Row{};
  const Sm90Row row90 = f64 ? Sm90Row{} : sm90_row(kSm90Layout, row.heads, row.head_dim, memory);
  KeyAddress at[kKeyBlock];
  int place[kKeyBlock];
  float found[kKeyBlock];
  for (std::int64_t done = 0; done < count; done += kKeyBlock) {
    const int block = count - done < kKeyBlock ? static_cast<int>(count - done) : kKeyBlock;
    const int valid = locate_block(keys, index != nullptr ? index + done : nullptr, first + done, block, at, place);
    int j = 0;
    if (f64) {
      for (; j + kF64Tile <= valid; j += kF64Tile)
        tile_f64<kF64Tile>(row64, row.heads, row.head_dim, at + j, found + j);
      for (; j < valid; ++j) tile_f64<1>(row64, row.heads, row.head_dim, at + j, found + j);
    } else {
      for (; j < valid; j += kSm90Tile) {
        const int tile = valid - j < kSm90Tile ? valid - j : kSm90Tile;
        tile_sm90(row90, row.heads, row.head_dim, at + j, tile, found + j);
      }
    }
    for (j = 0; j < block; ++j) scores[done + j] = nan_score();
    for (j = 0; j < valid; ++j) {
      if (!row64.nan) scores[done + place[j]] = found[j];
    }
  }
}

}  // namespace dosa::cpu::avx2

#endif  // __x86_64__
