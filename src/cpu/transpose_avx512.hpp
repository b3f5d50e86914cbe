// Vectors of one key or row each, turned into vectors with a key or row a lane. Unnamed namespace: see
// panel_kernels.hpp.
#pragma once

#include "cpu/intrinsics.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// 16 rows of 16 words of 32 bits; their columns afterwards. Each round of interleaving row i with row i + 8 rotates
/// (row, column) by one bit.
inline void transpose_words(__m512i (&row)[16]) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    __m512i next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_permutex2var_epi32(row[i], low, row[i + 8]);
      next[2 * i + 1] = _mm512_permutex2var_epi32(row[i], high, row[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = next[i];
  }
}

/// What joins words of 32 bits on their way into one.
struct SumOfWords {
  static __m512 join(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
/// Byte by byte.
struct LargestBytes {
  static __m512 join(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epu8(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
};

/// Four keys: what each 128 bits of key k join to is word k of the same 128 bits. One port of two shuffles, so the
/// first step takes one shuffle and one selection.
template <class How>
[[gnu::always_inline]] inline __m512 join_four(const __m512 (&key)[4]) {
  const auto two = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return How::join(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
  };
  const __m512 first = two(key[0], key[1]), second = two(key[2], key[3]);
  return How::join(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
}

/// Sixteen keys, a word each: what the first 256 bits of a key came to, and the second.
struct Halves {
  __m512 first, second;
};

/// `four`: from join_four, of keys 0-3, 4-7, 8-11, 12-15.
template <class How>
[[gnu::always_inline]] inline Halves join_sixteen(const __m512* four) {
  const auto two = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return How::join(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const __m512 left = two(four[0], four[1]), right = two(four[2], four[3]);
  return {_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd)};
}

}  // namespace
}  // namespace dosa::cpu
