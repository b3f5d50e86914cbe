// The kernel table for AVX-512 (F, BW, VL, DQ): F32 multiply-add.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "cpu/pack_avx512.hpp"
#include "cpu/table_avx512.hpp"

namespace dosa::cpu {
namespace {

struct F32Packer {
  static constexpr int panel_keys = Lanes512::panel_keys;

  static void store(std::byte* data, int group, int d, __m512 low, __m512 high) {
    float* at = reinterpret_cast<float*>(data) + d * panel_keys + 16 * group;
    _mm512_store_ps(at, low);
    _mm512_store_ps(at + 16 * panel_keys, high);
  }

  template <bool with_mean, bool with_model>
  static __mmask16 lanes(const Lane* lane, const float* mean, const Panel& panel, int group) {
    std::byte* const data = panel.data;
    float* const features = panel.features + 16 * group;
    constexpr int stride = panel_keys;
    const int head_dim = panel.head_dim;
    __m512 squares = _mm512_setzero_ps();
    __m512 centred[4] = {};  // one sum would be a chain of 2 D additions, each waiting for the one before
    __m128i largest = _mm_setzero_si128();
    for (int block = 0; block < head_dim; block += 64) {
      const __mmask64 present = head_dim - block >= 64 ? ~__mmask64{0} : __mmask64{0xffffffffU};
      __m512i row[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) row[k] = _mm512_maskz_loadu_epi8(present, lane[k].codes + block);
      transpose_bytes(row);
      __m512i most = _mm512_setzero_si512();
#pragma GCC unroll 16
      for (const __m512i& codes : row) most = _mm512_max_epu8(most, _mm512_and_si512(codes, _mm512_set1_epi8(0x7f)));
      // One half of the rows is one chunk of 32 dimensions; which one is known when this is compiled.
      const auto take = [&]<bool upper_half>() __attribute__((always_inline)) {
        const auto half_of = [](__m512i codes) __attribute__((always_inline)) {
          return upper_half ? _mm512_extracti64x4_epi64(codes, 1) : _mm512_castsi512_si256(codes);
        };
        const int chunk = upper_half ? block + 32 : block;
        if constexpr (with_model) {
          float* at = features + (kModel + chunk / 16) * stride;
          const __m256i half = half_of(most);
          _mm512_storeu_ps(at, power_of_magnitudes(_mm512_cvtepu8_epi32(
                                   _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)))));
          _mm512_storeu_ps(at + stride, root_upward(squares, head_dim, 0.0F));
        }
        __m512 part[4] = {squares};
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          const __m512i f16 = f16_of_codes(half_of(row[i]));
          const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
          const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
          part[i % 2] = _mm512_fmadd_ps(low, low, part[i % 2]);
          part[2 + i % 2] = _mm512_fmadd_ps(high, high, part[2 + i % 2]);
          if constexpr (with_mean) {
            const __m512 a = _mm512_fnmadd_ps(_mm512_set1_ps(mean[chunk + i]), _mm512_set1_ps(kCodeFactor), low);
            const __m512 b = _mm512_fnmadd_ps(_mm512_set1_ps(mean[chunk + i + 16]), _mm512_set1_ps(kCodeFactor), high);
            centred[i % 2] = _mm512_fmadd_ps(a, a, centred[i % 2]);
            centred[2 + i % 2] = _mm512_fmadd_ps(b, b, centred[2 + i % 2]);
          }
          store(data, group, chunk + i, low, high);
        }
        squares = sum_of(part);
      };
      take.template operator()<false>();
      if (head_dim - block >= 64) take.template operator()<true>();
      const __m256i both = _mm256_max_epu8(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
      largest = _mm_max_epu8(largest, _mm_max_epu8(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
    }
    const __m512 norm = root_upward(squares, head_dim, 0.0F);
    _mm512_storeu_ps(features + kNorm * stride, norm);
    _mm512_storeu_ps(features + kCentred * stride, with_mean ? root_upward(sum_of(centred), head_dim, 0x1p-64F) : norm);
    return _mm_cmpeq_epi8_mask(largest, _mm_set1_epi8(0x7f));
  }
};

/// A chain of D fused multiply-adds in round to nearest (FloatEnvironment sets it): each of its D roundings is at most
/// u = 2^-24 of a partial sum, and partial sums are at most (1+u)^D sum |row_d k_d|: D u (1+u)^D <= D u (1 + 2^-15).
Arithmetic arithmetic(int head_dim) { return {head_dim * 0x1p-24 * (1 + 0x1p-15), 0.0, 0x1p-24}; }

using Table = PanelKernels<Lanes512>;

constexpr Kernels kKernels = table_512<Table, F32Packer>(Isa::avx512, arithmetic, Table::screen<keep_not_below_512>);

}  // namespace

const Kernels* avx512_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* avx512_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
