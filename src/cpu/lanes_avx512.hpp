// AVX-512 registers as panel_kernels.hpp wants them; for files compiled with the AVX-512 flags only.
#pragma once

#include <cstdint>

#include "cpu/intrinsics.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

struct Lanes512 : OneDimensionAStep {
  using Vector = __m512;
  static constexpr int width = 16;
  // 8 rows x 3 registers: 24 sums, 3 registers of keys and one broadcast fit the 32 registers, and a panel of 48 keys
  // of 128 dimensions (24 KiB) stays in the first-level cache next to a form.
  static constexpr int vectors = 3, rows = 8, panel_keys = 48;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector accumulate(Vector row, Vector key, Vector sum) { return multiply_add(row, key, sum); }
  static Vector minimum(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Vector maximum_or_second(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector relu(Vector x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }  // NaN in, NaN out
  static Vector magnitude(Vector x) { return _mm512_abs_ps(x); }
  /// |value| <= limit ? yes : no; NaN is within no limit.
  static Vector where_within(Vector value, Vector limit, Vector yes, Vector no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(value), limit, _CMP_LE_OQ), no, yes);
  }
};

/// 16 rows of 64 bytes as four 16 x 16 blocks, one a 128-bit lane: afterwards byte k of lane l of row i is what byte
/// 16 l + i of row k was. Each round of interleaving row i with row i + 8 rotates (row, byte) by one bit.
inline void transpose_bytes(__m512i (&row)[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    __m512i next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_unpacklo_epi8(row[i], row[i + 8]);
      next[2 * i + 1] = _mm512_unpackhi_epi8(row[i], row[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = next[i];
  }
}

/// 32 E4M3 codes as F16 bit patterns of value * 2^-8: sign, a zero, exponent and mantissa. E4M3's subnormals become
/// F16's, which the converter honours whatever the control register says.
inline __m512i f16_of_codes(__m256i codes) {
  return _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7),
                          _mm512_set1_epi16(static_cast<short>(0xBF80)));
}

/// Largest 2^e of 16 codes' magnitudes, with the subnormals' exponent -6; 0 for magnitude 0.
inline __m512 power_of_magnitudes(__m512i m) {
  const __m512i e = _mm512_max_epi32(_mm512_srli_epi32(m, 3), _mm512_set1_epi32(1));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(_mm512_test_epi32_mask(m, m), _mm512_add_epi32(e, _mm512_set1_epi32(120)), 23));
}

}  // namespace
}  // namespace dosa::cpu
