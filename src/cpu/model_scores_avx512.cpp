// Both score models bit for bit on AVX-512: lanes are heads, keys are broadcast.
//
// f64: E4M3 products and their sums are exact in binary64, so the dots are plain FMAs in any order.
//
// sm90: a k-step cuts 32 products and the accumulator toward zero at u = 2^(E-13) and adds the integers. Here the adder
// does the cutting: an F32 accumulator that starts at M = 2^23 u has exactly the spacing u (all sums stay below 2^21
// u), so fma(q, k, accumulator) rounded toward zero adds the product cut to a multiple of u. Cutting is toward zero for
// products of the accumulator's sign only, hence two accumulators: nonnegative products onto +M, nonpositive ones onto
// -M. Their sum is the exact T, and clearing 10 mantissa bits is the last cut.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593: deliberate in its own AVX-512 headers
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/lanes_avx512.hpp"
#include "cpu/model_rows.hpp"
#include "cpu/model_scores.hpp"

namespace dosa::cpu::avx512 {
namespace {

constexpr RowLayout kF64Layout{8, 4, false};
constexpr RowLayout kSm90Layout{16, 4, true};
constexpr int kChunk = 32;
constexpr int kRoundToZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

// E4M3 bits moved into FP16 fields mean value * 2^-8, subnormals included (a NaN code becomes a finite number).
inline __m512i as_half(__m256i codes) {
  const __m512i wide = _mm512_cvtepu8_epi16(codes);
  const __m512i magnitude = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x7f)), 7);
  const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x80)), 8);
  return _mm512_or_si512(magnitude, sign);
}

inline __m256i load_codes(const std::uint8_t* codes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
}

inline bool any_nan(__m256i codes) {
  const __m256i nan = _mm256_set1_epi8(0x7f);
  return _mm256_cmpeq_epi8_mask(_mm256_and_si256(codes, nan), nan) != 0;
}

inline float nan_score() { return __builtin_bit_cast(float, 0x7fffffffU); }

// ---- f64 ----

// value * 2^8 of 16 heads' codes of one dimension, the first `width` of them.
inline void store_dimension(__m128i codes, int width, double* out) {
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                        _mm256_set1_epi16(static_cast<short>(0xBF80)));
  const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(0x1p16F));
  _mm512_storeu_pd(out, _mm512_cvtps_pd(_mm512_castps512_ps256(value)));
  if (width > 8) _mm512_storeu_pd(out + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1)));
}

void fill_group(const ScoreRow& row, int first_head, int width, double* out) {
  for (int lane = 0; lane < width; lane += 16) {
    const int left = width - lane;
    for (int d = 0; d < row.head_dim; d += 64) {
      const bool whole = row.head_dim - d >= 64;
      __m512i codes[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        const int h = first_head + lane + k;
        const __mmask64 present = k >= left || h >= row.heads ? 0 : whole ? ~__mmask64{0} : __mmask64{0xffffffffU};
        codes[k] = _mm512_maskz_loadu_epi8(present, row.q + (present == 0 ? 0 : h * row.head_stride + d));
      }
      transpose_bytes(codes);
      double* const at = out + d * width + lane;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        store_dimension(_mm512_castsi512_si128(codes[i]), left, at + i * width);
        store_dimension(_mm512_extracti32x4_epi32(codes[i], 1), left, at + (16 + i) * width);
        if (!whole) continue;
        store_dimension(_mm512_extracti32x4_epi32(codes[i], 2), left, at + (32 + i) * width);
        store_dimension(_mm512_extracti32x4_epi32(codes[i], 3), left, at + (48 + i) * width);
      }
    }
  }
}

// value * 2^-8 of every code; true where a code is NaN.
inline bool decode_f64(const std::uint8_t* codes, int head_dim, double* out) {
  bool nan = false;
  for (int d = 0; d < head_dim; d += 32) {
    const __m256i raw = load_codes(codes + d);
    nan |= any_nan(raw);
    const __m512i half = as_half(raw);
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    _mm512_storeu_pd(out + d, _mm512_cvtps_pd(_mm512_castps512_ps256(low)));
    _mm512_storeu_pd(out + d + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(low, 1)));
    _mm512_storeu_pd(out + d + 16, _mm512_cvtps_pd(_mm512_castps512_ps256(high)));
    _mm512_storeu_pd(out + d + 24, _mm512_cvtps_pd(_mm512_extractf32x8_ps(high, 1)));
  }
  return nan;
}

// relu(dot) of `Vectors` * 8 heads for `Tile` keys at values[key * kMaxDim ..], to relu[key * kMaxHeads ..].
template <int Vectors, int Tile>
inline void dots_f64(const double* q, const double* values, int head_dim, double* relu) {
  __m512d sum[Tile][Vectors];
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) sum[j][v] = _mm512_setzero_pd();
  }
  for (int d = 0; d < head_dim; ++d) {
    __m512d row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = _mm512_loadu_pd(q + (static_cast<std::ptrdiff_t>(d) * Vectors + v) * 8);
    for (int j = 0; j < Tile; ++j) {
      const __m512d key = _mm512_set1_pd(values[j * kMaxDim + d]);
      for (int v = 0; v < Vectors; ++v) sum[j][v] = _mm512_fmadd_pd(row[v], key, sum[j][v]);
    }
  }
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) {
      _mm512_storeu_pd(relu + j * kMaxHeads + v * 8, _mm512_max_pd(sum[j][v], _mm512_setzero_pd()));
    }
  }
}

constexpr int kF64Tile = 6;

template <int Tile>
inline void tile_f64(const F64Row& row, int heads, int head_dim, const KeyAddress* keys, float* scores) {
  alignas(64) double values[Tile * kMaxDim];
  alignas(64) double relu[Tile * kMaxHeads];
  bool nan[Tile];
  for (int j = 0; j < Tile; ++j) nan[j] = decode_f64(keys[j].codes, head_dim, values + j * kMaxDim);
  const double* q = row.q;
  int h = 0;
  int vectors = (heads + 7) / 8;  // in the groups of RowLayout
  for (; vectors >= 4; vectors -= 4, h += 32, q += std::ptrdiff_t{32} * head_dim) {
    dots_f64<4, Tile>(q, values, head_dim, relu + h);
  }
  if (vectors >= 2) {
    dots_f64<2, Tile>(q, values, head_dim, relu + h);
    vectors -= 2, h += 16, q += std::ptrdiff_t{16} * head_dim;
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

struct Sm90Key {
  alignas(64) float value[kMaxDim];             // value * 2^-8
  alignas(64) std::uint32_t exponent[kMaxDim];  // kExponentBias + e (0 for a zero code) in all four bytes
  alignas(64) std::int32_t swap[kMaxDim];       // 16 (floats) where the value is negative, else 0
};

inline void decode_sm90(const std::uint8_t* codes, int head_dim, Sm90Key* key) {
  bool nan = false;
  for (int d = 0; d < head_dim; d += 32) nan |= any_nan(load_codes(codes + d));
  for (int d = 0; d < head_dim; d += 32) {
    // A key with a NaN code has NaN accumulators, of which the served relu makes +0: the same as an all-zero key.
    const __m256i raw = nan ? _mm256_setzero_si256() : load_codes(codes + d);
    const __m512i half = as_half(raw);
    _mm512_storeu_ps(key->value + d, _mm512_cvtph_ps(_mm512_castsi512_si256(half)));
    _mm512_storeu_ps(key->value + d + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)));
    const __m256i field = _mm256_and_si256(_mm256_srli_epi16(raw, 3), _mm256_set1_epi8(15));
    const __m256i exponent =
        _mm256_add_epi8(_mm256_max_epu8(field, _mm256_set1_epi8(1)), _mm256_set1_epi8(kExponentBias - 7));
    const __mmask32 nonzero = _mm256_test_epi8_mask(raw, _mm256_set1_epi8(0x7f));
    const __m256i present = _mm256_maskz_mov_epi8(nonzero, exponent);
    for (int half_index = 0; half_index < 2; ++half_index) {
      const __m128i part = half_index == 0 ? _mm256_castsi256_si128(present) : _mm256_extracti128_si256(present, 1);
      const __m128i signs = half_index == 0 ? _mm256_castsi256_si128(raw) : _mm256_extracti128_si256(raw, 1);
      const __m512i four = _mm512_mullo_epi32(_mm512_cvtepu8_epi32(part), _mm512_set1_epi32(0x01010101));
      _mm512_storeu_si512(key->exponent + d + half_index * 16, four);
      const __m512i swap = _mm512_and_si512(_mm512_srli_epi32(_mm512_cvtepu8_epi32(signs), 3), _mm512_set1_epi32(16));
      _mm512_storeu_si512(key->swap + d + half_index * 16, swap);
    }
  }
}

// Largest biased product exponent of each of Vectors * 16 heads over one chunk, widened to 32 bits.
template <int Vectors, int Tile>
inline void product_exponents(const std::uint8_t* q, const Sm90Key* keys, int first, __m512i (*out)[Vectors]) {
  const std::uint8_t* row = q + static_cast<std::ptrdiff_t>(first) * Vectors * 16;
  if constexpr (Vectors == 4) {
    __m512i largest[Tile];
    for (int j = 0; j < Tile; ++j) largest[j] = _mm512_set1_epi8(kNoProduct);
    for (int d = 0; d < kChunk; ++d) {
      const __m512i exponents = _mm512_loadu_si512(row + d * 64);
      for (int j = 0; j < Tile; ++j) {
        const __m512i key = _mm512_set1_epi32(static_cast<int>(keys[j].exponent[first + d]));
        largest[j] = _mm512_max_epu8(largest[j], _mm512_add_epi8(exponents, key));
      }
    }
    for (int j = 0; j < Tile; ++j) {
      out[j][0] = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(largest[j]));
      out[j][1] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(largest[j], 1));
      out[j][2] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(largest[j], 2));
      out[j][3] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(largest[j], 3));
    }
  } else if constexpr (Vectors == 2) {
    __m256i largest[Tile];
    for (int j = 0; j < Tile; ++j) largest[j] = _mm256_set1_epi8(kNoProduct);
    for (int d = 0; d < kChunk; ++d) {
      const __m256i exponents = load_codes(row + d * 32);
      for (int j = 0; j < Tile; ++j) {
        const __m256i key = _mm256_set1_epi32(static_cast<int>(keys[j].exponent[first + d]));
        largest[j] = _mm256_max_epu8(largest[j], _mm256_add_epi8(exponents, key));
      }
    }
    for (int j = 0; j < Tile; ++j) {
      out[j][0] = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(largest[j]));
      out[j][1] = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(largest[j], 1));
    }
  } else {
    __m128i largest[Tile];
    for (int j = 0; j < Tile; ++j) largest[j] = _mm_set1_epi8(kNoProduct);
    for (int d = 0; d < kChunk; ++d) {
      const __m128i exponents = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + d * 16));
      for (int j = 0; j < Tile; ++j) {
        const __m128i key = _mm_set1_epi32(static_cast<int>(keys[j].exponent[first + d]));
        largest[j] = _mm_max_epu8(largest[j], _mm_add_epi8(exponents, key));
      }
    }
    for (int j = 0; j < Tile; ++j) out[j][0] = _mm512_cvtepu8_epi32(largest[j]);
  }
}

// relu of the accumulators of Vectors * 16 heads for Tile keys, to relu[key * kMaxHeads ..].
template <int Vectors, int Tile>
inline void accumulators(const float* q, const std::uint8_t* exponents, const Sm90Key* keys, int head_dim,
                         float* relu) {
  __m512 c[Tile][Vectors];
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) c[j][v] = _mm512_setzero_ps();
  }
  const __m512 zero = _mm512_setzero_ps();
  for (int first = 0; first < head_dim; first += kChunk) {
    __m512i largest[Tile][Vectors];
    product_exponents<Vectors, Tile>(exponents, keys, first, largest);
    __m512 up[Tile][Vectors], down[Tile][Vectors];
    for (int j = 0; j < Tile; ++j) {
      for (int v = 0; v < Vectors; ++v) {
        // E + 127, the larger of the products' (biased by 2 * kExponentBias) and c's own exponent field (0 for c = 0).
        const __m512i field =
            _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(c[j][v]), 23), _mm512_set1_epi32(255));
        const __m512i e =
            _mm512_max_epi32(_mm512_add_epi32(largest[j][v], _mm512_set1_epi32(127 - 2 * kExponentBias)), field);
        // M = 2^23 u = 2^(E+10).
        const __m512 m = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(10)), 23));
        up[j][v] = _mm512_add_round_ps(m, _mm512_max_ps(c[j][v], zero), kRoundToZero);
        down[j][v] = _mm512_sub_round_ps(_mm512_min_ps(c[j][v], zero), m, kRoundToZero);
      }
    }
    const float* row = q + static_cast<std::ptrdiff_t>(first) * Vectors * 32;
#pragma GCC unroll 4
    for (int d = 0; d < kChunk; ++d, row += Vectors * 32) {
      for (int j = 0; j < Tile; ++j) {
        const __m512 key = _mm512_set1_ps(keys[j].value[first + d]);
        const float* same = row + keys[j].swap[first + d];  // heads whose product is nonnegative
        const float* opposite = row + 16 - keys[j].swap[first + d];
        for (int v = 0; v < Vectors; ++v) {
          up[j][v] = _mm512_fmadd_round_ps(_mm512_loadu_ps(same + v * 32), key, up[j][v], kRoundToZero);
          down[j][v] = _mm512_fmadd_round_ps(_mm512_loadu_ps(opposite + v * 32), key, down[j][v], kRoundToZero);
        }
      }
    }
    for (int j = 0; j < Tile; ++j) {
      for (int v = 0; v < Vectors; ++v) {
        const __m512i sum = _mm512_castps_si512(_mm512_add_ps(up[j][v], down[j][v]));
        c[j][v] = _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xfffffc00U))));
      }
    }
  }
  for (int j = 0; j < Tile; ++j) {
    for (int v = 0; v < Vectors; ++v) _mm512_storeu_ps(relu + j * kMaxHeads + v * 16, _mm512_max_ps(c[j][v], zero));
  }
}

// The kernel's order: chain of lane l over head groups 1, 0, 2, 3, ..; -0 is the identity that starts it, and what
// padding heads add.
inline float reduce(const float* weights, const float* relu, int heads, float key_scale) {
  __m256 chain = _mm256_set1_ps(-0.0F);
  if (heads > 8) chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights + 8), _mm256_loadu_ps(relu + 8), chain);
  chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights), _mm256_loadu_ps(relu), chain);
  for (int h = 16; h < heads; h += 8)
    chain = _mm256_fmadd_ps(_mm256_loadu_ps(weights + h), _mm256_loadu_ps(relu + h), chain);
  const __m256 pairs = _mm256_add_ps(chain, _mm256_movehdup_ps(chain));  // lanes 0, 2, 4, 6: s(t,0) + s(t,1)
  const __m256 parts = _mm256_mul_ps(pairs, _mm256_set1_ps(key_scale));
  const __m256 sums = _mm256_add_ps(parts, _mm256_permute_ps(parts, 0x4e));  // lanes 0, 4: part 0 + 1, part 2 + 3
  const __m128 score = _mm_add_ss(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  const float value = _mm_cvtss_f32(score);
  return __builtin_isnan(value) ? nan_score() : value;
}

template <int Vectors, int Tile>
inline void group_sm90(const Sm90Row& row, int first_head, const Sm90Key* keys, int count, int head_dim, float* relu) {
  const std::ptrdiff_t skip = static_cast<std::ptrdiff_t>(first_head) * head_dim;
  int j = 0;
  for (; j + Tile <= count; j += Tile) {
    accumulators<Vectors, Tile>(row.values + 2 * skip, row.exponents + skip, keys + j, head_dim,
                                relu + j * kMaxHeads + first_head);
  }
  for (; j < count; ++j) {
    accumulators<Vectors, 1>(row.values + 2 * skip, row.exponents + skip, keys + j, head_dim,
                             relu + j * kMaxHeads + first_head);
  }
}

constexpr int kSm90Tile = 4;

inline void tile_sm90(const Sm90Row& row, int heads, int head_dim, const KeyAddress* addresses, int count,
                      float* scores) {
  Sm90Key keys[kSm90Tile];
  alignas(64) float relu[kSm90Tile * kMaxHeads];
  for (int j = 0; j < count; ++j) decode_sm90(addresses[j].codes, head_dim, &keys[j]);
  int h = 0;
  int vectors = (heads + 15) / 16;  // in the groups of RowLayout
  for (; vectors >= 4; vectors -= 4, h += 64) group_sm90<4, 2>(row, h, keys, count, head_dim, relu);
  if (vectors >= 2) {
    group_sm90<2, 4>(row, h, keys, count, head_dim, relu);
    vectors -= 2, h += 32;
  }
  if (vectors == 1) group_sm90<1, 4>(row, h, keys, count, head_dim, relu);
  for (int j = 0; j < count; ++j) {
    scores[j] = reduce(row.weights, relu + j * kMaxHeads, heads, *addresses[j].scale);
  }
}

}  // namespace

std::size_t model_bytes(ScoreModel model, int heads, int head_dim) {
  return row_bytes(model, model == ScoreModel::f64 ? kF64Layout : kSm90Layout, heads, head_dim);
}

void model_row(ScoreModel model, const ScoreRow& row, std::byte* memory) {
  fill_row(model, model == ScoreModel::f64 ? kF64Layout : kSm90Layout, row, memory, fill_group);
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

}  // namespace dosa::cpu::avx512

#endif  // __x86_64__
