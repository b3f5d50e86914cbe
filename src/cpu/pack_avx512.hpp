// What packing of keys with AVX-512 shares whatever the panel holds: lanes, norms' roundings, scales.
// Packer::lanes<with mean, with model> writes 16 keys' codes and features (values times 2^-8) and returns which of them
// hold a NaN code.
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
/// VDPBF16PS: squares of codes are exact (8 by 8 bits), no operand, square or sum is subnormal or zero by flushing, and
/// each of its two additions loses at most 2 u of its result, fused or not and whatever the rounding. Each of four sums
/// takes n / 4 of them and two more join the sums: computed >= exact * (1-2u)^(n/4+2) >= exact * (1-u)^(n+3).
inline __m512 root_upward(__m512 sum, int head_dim, float extra) {
  const float factor = 1.0F + static_cast<float>(head_dim + 16) * 0x1p-24F;
  const __m512 root =
      _mm512_mul_ps(_mm512_sqrt_ps(_mm512_mul_ps(sum, _mm512_set1_ps(factor))), _mm512_set1_ps(kRowFactor));
  return extra == 0.0F ? root : _mm512_add_ps(root, _mm512_set1_ps(extra));
}

inline __m512 sum_of(const __m512 (&part)[4]) {
  return _mm512_add_ps(_mm512_add_ps(part[0], part[1]), _mm512_add_ps(part[2], part[3]));
}

template <class Packer>
inline void pack_panel(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
                       const PackSpec& spec, Panel& panel) {
  constexpr int lanes = Packer::panel_keys;
  Lane lane[lanes];
  find_lanes<lanes>(keys, index, first, count, lane);
  panel.count = count;
  static constexpr decltype(&Packer::template lanes<true, true>) kLanes[2][2] = {
      {Packer::template lanes<false, false>, Packer::template lanes<false, true>},
      {Packer::template lanes<true, false>, Packer::template lanes<true, true>}};
  const auto pack_lanes = kLanes[spec.mean != nullptr ? 1 : 0][panel.feature_count > kModel ? 1 : 0];
  for (int group = 0; group < lanes / 16; ++group) {
    float* features = panel.features + 16 * group;
    const Lane* at = lane + 16 * group;
    const __mmask16 poisoned = pack_lanes(at, spec.mean, panel, group);
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
