// Packing of keys with AVX-512, shared by the F32 and the AMX panel: `Sink::store(panel data, group of 16 keys,
// dimension d, values at d, values at d + 16)` decides where two dimensions of 16 keys go (values times 2^-8).
#pragma once

#include "cpu/intrinsics.hpp"
#include "cpu/key_sources.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// The root of a sum of n squares, upward and times 2^8 again. With u = 2^-24: each square's and each sum's rounding
/// and, where the terms are differences, theirs (2 u on the square), leave computed >= exact * (1-u)^(n+3) in any order
/// of the additions, so exact <= computed * (1 + (n + 4) u) for n <= 256. factor = 1 + (n + 16) u is exact for even n;
/// its product and the root round by u each (2 u on the square): computed * factor * (1-u)^3 >= computed * (1 + (n +
/// 12) u) >= exact. Squares of codes are at least 2^-34; a difference of a code and a mean may be smaller, and what its
/// square loses below the F32 range is at most n * 2^-150, so its root gets 2^-64 more: `extra`.
inline __m512 root_upward(__m512 sum, int head_dim, float extra) {
  const float factor = 1.0F + static_cast<float>(head_dim + 16) * 0x1p-24F;
  const __m512 root =
      _mm512_mul_ps(_mm512_sqrt_ps(_mm512_mul_ps(sum, _mm512_set1_ps(factor))), _mm512_set1_ps(kRowFactor));
  return extra == 0.0F ? root : _mm512_add_ps(root, _mm512_set1_ps(extra));
}

inline __m512 sum_of(const __m512 (&part)[4]) {
  return _mm512_add_ps(_mm512_add_ps(part[0], part[1]), _mm512_add_ps(part[2], part[3]));
}

/// 16 lanes: codes into the sink, features into features[f * stride]; returns which lanes hold a NaN code.
template <class Sink, bool with_mean, bool with_model>
inline __mmask16 pack_lanes(const Lane* lane, int head_dim, const float* mean, std::byte* data, int group,
                            float* features, int stride) {
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
        _mm512_storeu_ps(at,
                         power_of_codes(_mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))));
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
        Sink::store(data, group, chunk + i, low, high);
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

template <class Sink>
inline void pack_panel(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
                       const PackSpec& spec, Panel& panel) {
  constexpr int lanes = Sink::panel_keys;
  Lane lane[lanes];
  find_lanes<lanes>(keys, index, first, count, lane);
  panel.count = count;
  const bool with_model = panel.feature_count > kModel;
  for (int group = 0; group < lanes / 16; ++group) {
    float* features = panel.features + 16 * group;
    const Lane* at = lane + 16 * group;
    __mmask16 poisoned = 0;
    if (spec.mean != nullptr) {
      poisoned = with_model
                     ? pack_lanes<Sink, true, true>(at, panel.head_dim, spec.mean, panel.data, group, features, lanes)
                     : pack_lanes<Sink, true, false>(at, panel.head_dim, spec.mean, panel.data, group, features, lanes);
    } else {
      poisoned = with_model
                     ? pack_lanes<Sink, false, true>(at, panel.head_dim, nullptr, panel.data, group, features, lanes)
                     : pack_lanes<Sink, false, false>(at, panel.head_dim, nullptr, panel.data, group, features, lanes);
    }
    alignas(64) float scale[16];
    for (int i = 0; i < 16; ++i) scale[i] = at[i].scale;
    _mm512_storeu_ps(panel.scale + 16 * group,
                     _mm512_mask_blend_ps(poisoned, _mm512_load_ps(scale), _mm512_set1_ps(__builtin_nanf(""))));
    if (16 * group + 16 > count) {
      // A mean makes |k - mean| of a lane without a key nonzero; the interface promises zeros there.
      const __mmask16 absent =
          static_cast<__mmask16>(16 * group >= count ? 0xffffU : 0xffffU << static_cast<unsigned>(count - 16 * group));
      for (int f = 0; f < panel.feature_count; ++f) {
        _mm512_mask_storeu_ps(features + f * lanes, absent, _mm512_setzero_ps());
      }
    }
  }
}

}  // namespace
}  // namespace dosa::cpu
