// bf16 in AVX-512 registers, for tiles and for VDPBF16PS; unnamed namespace: see panel_kernels.hpp.
#pragma once

#include <cstdint>

#include "cpu/intrinsics.hpp"
#include "cpu/kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// Round to nearest even; infinities stay, NaN becomes a quiet NaN.
inline std::uint32_t bf16_bits(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if (x != x) return 0x7fc0U;
  return (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U;
}

/// The same for 16 numbers, in the upper halves.
inline __m512i bf16_of(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_and_si512(rounded, _mm512_set1_epi32(-65536)), _mm512_set1_epi32(0x7fc00000));
}

/// Numbers in upper halves side by side: `low` in the low halves, `high` in the high ones.
inline __m512i pairs_of(__m512i low, __m512i high) { return _mm512_or_si512(_mm512_srli_epi32(low, 16), high); }

/// Products are exact (8 by 8 significant bits). What order and roundings the sums have is left open, as Intel does for
/// tiles: any tree of at most D additions, each off by at most 2^-23 of its result, is within D 2^-23 (1 + 2^-14) of
/// the sum of magnitudes. An aggregate row is rounded to bf16's 8 bits, at most 2^-8 of it away: kept as two rows it
/// would cost a row more to save 1 to 3 survivors in a hundred. What the units flush to zero is paid for in
/// form_header.
inline Arithmetic bf16_arithmetic(int head_dim) { return {head_dim * 0x1p-23 * (1 + 0x1p-6), 0x1p-8, 0x1p-24}; }

}  // namespace
}  // namespace dosa::cpu
