// Packing of keys as pairs of bf16, shared by the tiles and by VDPBF16PS. A pair is (d, d + 2) of four dimensions that
// follow one another: keys are transposed four codes at a time, and one 16-bit shift turns the two odd codes of four
// into a pair of bf16, two shifts the two even ones. Pair 2 j + h of a chunk of 32 dimensions holds its dimensions
// 4 j + h and 4 j + h + 2.
// Sink::store(panel data, group of 16 keys, chunk, pair of the chunk, 16 keys' pairs) decides where they go (values
// times 2^-8); Sink::add_squares(pairs, pair of the chunk, four sums) adds D / 4 squares to each sum.
#pragma once

#include "cpu/bf16_avx512.hpp"
#include "cpu/intrinsics.hpp"
#include "cpu/key_sources.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// 32 numbers of a row in the order of the pairs.
inline __m512i row_pairs(const float* row) {
  const __m512 factor = _mm512_set1_ps(kRowFactor);
  const __m512i first = bf16_of(_mm512_mul_ps(_mm512_loadu_ps(row), factor));
  const __m512i second = bf16_of(_mm512_mul_ps(_mm512_loadu_ps(row + 16), factor));
  const __m512i low = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
  return pairs_of(_mm512_permutex2var_epi32(first, low, second), _mm512_permutex2var_epi32(first, high, second));
}

/// The first and the second numbers of pairs.
inline __m512 low_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 high_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))); }

/// 32 codes of 16 keys from byte `at`: afterwards key k's codes 4 j .. 4 j + 3 are element k of column[j].
inline void load_columns(const Lane* lane, int at, __m512i (&column)[8]) {
  __m512i row[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {  // the insertion from memory is no shuffle
    const std::uint8_t* const first = lane[r % 4 + r / 4 * 8].codes + at;
    const std::uint8_t* const second = lane[r % 4 + r / 4 * 8 + 4].codes + at;
    row[r] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first))),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
  }
  const auto transpose = [](__m512i a, __m512i b, __m512i c, __m512i d, __m512i * out) __attribute__((always_inline)) {
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab, cd);
    out[1] = _mm512_unpackhi_epi64(ab, cd);
    out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  };
  __m512i left[4], right[4];  // element l of 128 bits: key 4 l + r, its codes 0..15 or 16..31
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    left[r] = _mm512_shuffle_i32x4(row[r], row[r + 4], 0x88);
    right[r] = _mm512_shuffle_i32x4(row[r], row[r + 4], 0xdd);
  }
  transpose(left[0], left[1], left[2], left[3], column);
  transpose(right[0], right[1], right[2], right[3], column + 4);
}

/// Codes in the upper bytes of 16-bit words (the lower are ignored) as bf16 of value * 2^-8: the exponent of a normal
/// code, 1..15 (bias 7), becomes 113..127, so that its bits follow three ones. `subnormal`: there may be such codes and
/// zeros: m 2^-9 becomes m 2^-17.
template <bool subnormal>
inline __m512i bf16_of_codes(__m512i words) {
  const __m512i shifted = _mm512_srai_epi16(words, 4);  // sign in bits 11..15, magnitude in 4..10
  constexpr int kAndOr = 0xea;
  const __m512i normal = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi16(static_cast<short>(0x87f0)),
                                                   _mm512_set1_epi16(0x3800), kAndOr);
  if constexpr (!subnormal) return normal;
  const __m512i small =
      _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860));
  const __m512i magnitude = _mm512_permutexvar_epi16(_mm512_srli_epi16(shifted, 4), small);
  const __mmask32 here = _mm512_testn_epi16_mask(shifted, _mm512_set1_epi16(0x0780));
  return _mm512_mask_mov_epi16(normal, here,
                               _mm512_or_si512(magnitude, _mm512_and_si512(words, _mm512_set1_epi16(-32768))));
}

/// Largest of each four bytes.
inline __m512i largest_of_four(__m512i bytes) {
  const __m512i two = _mm512_max_epu8(bytes, _mm512_srli_epi32(bytes, 16));
  return _mm512_and_si512(_mm512_max_epu8(two, _mm512_srli_epi32(two, 8)), _mm512_set1_epi32(0xff));
}

/// Sums of one chunk after another; `centred` only where there is a mean.
struct ChunkSums {
  __m512 squares[4] = {};
  __m512 centred[4] = {};
};

/// One chunk of 32 dimensions, from columns of codes into the sink and the sums. mean: that of the chunk.
template <class Sink, bool with_mean, bool subnormal>
[[gnu::always_inline]] inline void pack_chunk(const __m512i (&column)[8], const float* mean, std::byte* data, int group,
                                              int chunk, ChunkSums& sums) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i pairs = bf16_of_codes<subnormal>(h == 0 ? _mm512_slli_epi16(column[j], 8) : column[j]);
      Sink::store(data, group, chunk, 2 * j + h, pairs);
      Sink::add_squares(pairs, 2 * j + h, sums.squares);
      if constexpr (with_mean) {
        const auto distance = [&](int d, __m512 value) __attribute__((always_inline)) {
          return _mm512_fnmadd_ps(_mm512_set1_ps(mean[d]), _mm512_set1_ps(kCodeFactor), value);
        };
        const __m512 a = distance(4 * j + h, low_of(pairs)), b = distance(4 * j + h + 2, high_of(pairs));
        sums.centred[h] = _mm512_fmadd_ps(a, a, sums.centred[h]);
        sums.centred[2 + h] = _mm512_fmadd_ps(b, b, sums.centred[2 + h]);
      }
    }
  }
}

template <class Sink>
struct PairPacker {
  static constexpr int panel_keys = Sink::panel_keys;

  template <bool with_mean, bool with_model>
  static __mmask16 lanes(const Lane* lane, const float* mean, const Panel& panel, int group) {
    std::byte* const data = panel.data;
    float* const features = panel.features + 16 * group;
    constexpr int stride = panel_keys;
    const int head_dim = panel.head_dim;
    ChunkSums sums;
    __m512i largest = _mm512_setzero_si512();
    for (int chunk = 0; chunk < head_dim / 32; ++chunk) {
      __m512i column[8];
      load_columns(lane, 32 * chunk, column);
      const __m512i magnitude = _mm512_set1_epi8(0x7f);
      __m512i most = _mm512_setzero_si512(), least = magnitude;
#pragma GCC unroll 8
      for (const __m512i& codes : column) {
        most = _mm512_max_epu8(most, _mm512_and_si512(codes, magnitude));
        least = _mm512_min_epu8(least, _mm512_and_si512(codes, magnitude));
      }
      largest = _mm512_max_epu8(largest, most);
      if constexpr (with_model) {
        float* const at = features + (kModel + 2 * chunk) * stride;
        _mm512_storeu_ps(at, power_of_magnitudes(largest_of_four(most)));
        _mm512_storeu_ps(at + stride, root_upward(sum_of(sums.squares), head_dim, 0.0F));
      }
      // One code of 10^4 in the recorded traces is a zero or subnormal: one chunk of 16 keys in 25 has such a one.
      // NaN codes pass for 480: their key has no bound.
      const float* const chunk_mean = with_mean ? mean + 32 * chunk : nullptr;
      if (_mm512_cmplt_epu8_mask(least, _mm512_set1_epi8(8)) == 0) {
        pack_chunk<Sink, with_mean, false>(column, chunk_mean, data, group, chunk, sums);
      } else {
        pack_chunk<Sink, with_mean, true>(column, chunk_mean, data, group, chunk, sums);
      }
    }
    const __m512 norm = root_upward(sum_of(sums.squares), head_dim, 0.0F);
    _mm512_storeu_ps(features + kNorm * stride, norm);
    _mm512_storeu_ps(features + kCentred * stride,
                     with_mean ? root_upward(sum_of(sums.centred), head_dim, 0x1p-64F) : norm);
    return _mm512_cmpeq_epi32_mask(largest_of_four(largest), _mm512_set1_epi32(0x7f));
  }
};

}  // namespace
}  // namespace dosa::cpu
