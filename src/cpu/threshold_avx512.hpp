// Counting and compressing of values against a threshold with AVX-512.
#pragma once

#include <cstdint>

#include "cpu/intrinsics.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

inline __mmask16 not_below(const float* values, std::int64_t left, __m512 threshold) {
  const __mmask16 present =
      left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << static_cast<unsigned>(left)) - 1U);
  return _mm512_mask_cmp_ps_mask(present, _mm512_maskz_loadu_ps(present, values), threshold, _CMP_NLT_UQ);
}

inline std::int64_t count_not_below_512(const float* values, std::int64_t count, float threshold) {
  const __m512 t = _mm512_set1_ps(threshold);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    found += __builtin_popcount(static_cast<unsigned>(not_below(values + i, count - i, t)));
  }
  return found;
}

/// Compresses in a register and stores all 16 lanes: the compressing store to memory is microcoded on Zen 4 and 5.
inline std::int64_t compress_not_below_512(const float* values, std::int64_t count, float threshold, std::int32_t base,
                                           std::int32_t* out) {
  const __m512 t = _mm512_set1_ps(threshold);
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = not_below(values + i, count - i, t);
    const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(base + static_cast<std::int32_t>(i)));
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(mask, index));
    found += __builtin_popcount(static_cast<unsigned>(mask));
  }
  return found;
}

}  // namespace
}  // namespace dosa::cpu
