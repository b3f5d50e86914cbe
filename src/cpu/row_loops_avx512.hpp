// A head's codes and products of heads with AVX-512. Unnamed namespace: see panel_kernels.hpp.
#pragma once

#include "cpu/intrinsics.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/row_loops.hpp"
#include "cpu/transpose_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

inline __m512d low_half(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
inline __m512d high_half(__m512 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

inline bool read_head_512(const std::uint8_t* codes, int head_dim, float* values, double* absolute, double* square) {
  __m512d sum[2] = {}, squares[2] = {};
  __mmask32 nan = 0;
  for (int d = 0; d < head_dim; d += 32) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + d));
    nan |= _mm256_cmpeq_epi8_mask(_mm256_and_si256(code, _mm256_set1_epi8(0x7f)), _mm256_set1_epi8(0x7f));
    const __m512i f16 = f16_of_codes(code);
    const __m512 factor = _mm512_set1_ps(kRowFactor);
    const __m512 part[2] = {_mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(f16)), factor),
                            _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1)), factor)};
    for (int half = 0; half < 2; ++half) {
      _mm512_storeu_ps(values + d + 16 * half, part[half]);
      const __m512d a = low_half(part[half]), b = high_half(part[half]);
      sum[half] = _mm512_add_pd(sum[half], _mm512_add_pd(_mm512_abs_pd(a), _mm512_abs_pd(b)));
      squares[half] = _mm512_fmadd_pd(a, a, _mm512_fmadd_pd(b, b, squares[half]));
    }
  }
  *absolute = _mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1]));
  *square = _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1]));
  return nan != 0;
}

inline double exact_dot_512(const float* a, const float* b, int dim) {
  __m512d low = _mm512_setzero_pd(), high = low;
  for (int d = 0; d < dim; d += 16) {
    const __m512 x = _mm512_loadu_ps(a + d), y = _mm512_loadu_ps(b + d);
    low = _mm512_fmadd_pd(low_half(x), low_half(y), low);
    high = _mm512_fmadd_pd(high_half(x), high_half(y), high);
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

/// Four vectors with four at a time: sixteen sums, each begun and ended once.
inline double joint_square_512(const float* vectors, const float* weights, int count, int dim) {
  const auto present = [&](int first) {
    return static_cast<__mmask16>((1U << static_cast<unsigned>(count - first < 4 ? count - first : 4)) - 1U);
  };
  const auto weights_of = [&](int first) {
    const __m512 four = _mm512_maskz_loadu_ps(present(first), weights + first);
    return _mm512_broadcast_f64x4(_mm256_cvtps_pd(_mm512_castps512_ps128(four)));
  };
  __m512d own = _mm512_setzero_pd(), others = own;
  for (int j = 0; j < count; j += 4) {
    const __m512d ours = weights_of(j);
    // Weight i for the four products of vector j + i: 0 0 0 0 1 1 1 1, then 2 and 3.
    const __m512d first_two = _mm512_permutexvar_pd(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1), ours);
    const __m512d last_two = _mm512_permutexvar_pd(_mm512_setr_epi64(2, 2, 2, 2, 3, 3, 3, 3), ours);
    for (int l = 0; l <= j; l += 4) {
      const float* a[4];
      const float* b[4];
      for (int i = 0; i < 4; ++i) {
        a[i] = vectors + static_cast<std::ptrdiff_t>(j + i < count ? j + i : j) * dim;
        b[i] = vectors + static_cast<std::ptrdiff_t>(l + i < count ? l + i : l) * dim;
      }
      __m512 dot[4][4] = {};
      for (int d = 0; d < dim; d += 16) {
        __m512 right[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) right[i] = _mm512_loadu_ps(b[i] + d);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m512 left = _mm512_loadu_ps(a[i] + d);
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k) dot[i][k] = _mm512_fmadd_ps(left, right[k], dot[i][k]);
        }
      }
      __m512 four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) four[i] = join_four<SumOfWords>(dot[i]);
      const Halves halves = join_sixteen<SumOfWords>(four);
      const __m512 all = _mm512_add_ps(halves.first, halves.second);
      const __m512d theirs = weights_of(l);
      const __m512d low = _mm512_mul_pd(_mm512_mul_pd(first_two, theirs), low_half(all));
      const __m512d high = _mm512_mul_pd(_mm512_mul_pd(last_two, theirs), high_half(all));
      __m512d& sum = l < j ? others : own;
      sum = _mm512_add_pd(sum, _mm512_add_pd(_mm512_abs_pd(low), _mm512_abs_pd(high)));
    }
  }
  return _mm512_reduce_add_pd(own) + 2 * _mm512_reduce_add_pd(others);
}

using Loops512 = SampleLoops<Lanes512>;
inline constexpr RowLoops kRowLoops512{read_head_512,          exact_dot_512,       Loops512::add_relu, Loops512::add,
                                       Loops512::weighted_sum, Loops512::survivors, joint_square_512};

}  // namespace
}  // namespace dosa::cpu
