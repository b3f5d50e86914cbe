// Counting and compressing of values against thresholds with AVX-512.
#pragma once

#include <cstdint>

#include "cpu/intrinsics.hpp"
#include "cpu/kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// base, base + 1, ... base + 15.
inline __m512i lane_numbers(std::int32_t base) {
  return _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                          _mm512_set1_epi32(base));
}

/// The lanes of a mask, side by side and no others: compressed in a register and stored under a mask, for the
/// compressing store to memory is microcoded on Zen 4 and 5, and slow everywhere.
struct PassedLanes {
  __mmask16 mask, present;
  int count;

  explicit PassedLanes(__mmask16 passed)
      : mask(passed), present(0), count(__builtin_popcount(static_cast<unsigned>(passed))) {
    present = static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
  }

  void store(float* to, __m512 x) const { _mm512_mask_storeu_ps(to, present, _mm512_maskz_compress_ps(mask, x)); }
  void store(std::int32_t* to, __m512i x) const {
    _mm512_mask_storeu_epi32(to, present, _mm512_maskz_compress_epi32(mask, x));
  }
};

inline __mmask16 not_below(const float* values, std::int64_t left, __m512 threshold) {
  const __mmask16 present =
      left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << static_cast<unsigned>(left)) - 1U);
  return _mm512_mask_cmp_ps_mask(present, _mm512_maskz_loadu_ps(present, values), threshold, _CMP_NLT_UQ);
}

/// Counts in lanes: moving every mask to a general register and counting its bits there takes twice as long.
inline std::int64_t count_not_below_512(const float* values, std::int64_t count, float threshold) {
  const __m512 t = _mm512_set1_ps(threshold);
  const __m512i one = _mm512_set1_epi32(1);
  constexpr std::int64_t most = std::int64_t{1} << 30;  // what one register of sums counts in 32 bits
  std::int64_t found = 0, i = 0;
  while (count - i >= 64) {
    const std::int64_t left = count - i;
    const std::int64_t last = i + (left < most ? left / 64 * 64 : most);
    __m512i counts[4] = {};
    for (; i < last; i += 64) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __mmask16 mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(values + i + 16 * v), t, _CMP_NLT_UQ);
        counts[v] = _mm512_mask_add_epi32(counts[v], mask, counts[v], one);
      }
    }
    found += _mm512_reduce_add_epi32(
        _mm512_add_epi32(_mm512_add_epi32(counts[0], counts[1]), _mm512_add_epi32(counts[2], counts[3])));
  }
  for (; i < count; i += 16) {
    found += __builtin_popcount(static_cast<unsigned>(not_below(values + i, count - i, t)));
  }
  return found;
}

/// Which of up to 16 values lie in [low, high).
inline __mmask16 between(const float* values, std::int64_t left, __m512 low, __m512 high) {
  const __mmask16 from_low = not_below(values, left, low);
  return _mm512_mask_cmp_ps_mask(from_low, _mm512_maskz_loadu_ps(from_low, values), high, _CMP_LT_OQ);
}

inline std::int64_t values_between_512(const float* values, std::int64_t count, float low, float high, float* out) {
  const __m512 l = _mm512_set1_ps(low), h = _mm512_set1_ps(high);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = between(values + i, count - i, l, h);
    const __m512 passed = _mm512_maskz_compress_ps(mask, _mm512_maskz_loadu_ps(mask, values + i));
    _mm512_storeu_ps(out + found, passed);
    found += __builtin_popcount(static_cast<unsigned>(mask));
  }
  return found;
}

/// Compresses in a register and stores all 16 lanes: the compressing store to memory is microcoded on Zen 4 and 5.
inline std::int64_t positions_between_512(const float* lower, const float* upper, std::int64_t count, float low,
                                          float high, std::int32_t* out) {
  const __m512 l = _mm512_set1_ps(low), h = _mm512_set1_ps(high);
  __m512i position = lane_numbers(0);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 from_low = not_below(upper + i, count - i, l);
    const __mmask16 mask =
        _mm512_mask_cmp_ps_mask(from_low, _mm512_maskz_loadu_ps(from_low, lower + i), h, _CMP_NGE_UQ);
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(mask, position));
    found += __builtin_popcount(static_cast<unsigned>(mask));
    position = _mm512_add_epi32(position, _mm512_set1_epi32(16));
  }
  return found;
}

inline std::int64_t keep_not_below_512(const Candidates& from, std::int64_t count, float floor, std::int32_t base,
                                       const Candidates& to) {
  const __m512 t = _mm512_set1_ps(floor);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = not_below(from.upper + i, count - i, t);
    if (mask == 0) continue;
    const PassedLanes passed(mask);
    // All loads before the first store: `to` may be `from`.
    const __m512i key = from.key == nullptr ? lane_numbers(base + static_cast<std::int32_t>(i))
                                            : _mm512_maskz_loadu_epi32(mask, from.key + i);
    const __m512 upper = _mm512_maskz_loadu_ps(mask, from.upper + i);
    if (from.lower != nullptr) passed.store(to.lower + found, _mm512_maskz_loadu_ps(mask, from.lower + i));
    passed.store(to.key + found, key);
    passed.store(to.upper + found, upper);
    found += passed.count;
  }
  return found;
}

}  // namespace
}  // namespace dosa::cpu
