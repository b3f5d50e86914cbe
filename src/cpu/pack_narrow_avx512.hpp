// Packing of keys as integers of a byte (T11 of docs/certificate.md), with AVX512_VBMI and AVX512_VNNI, which every
// processor with tiles has. Unnamed namespace: see panel_kernels.hpp.
//
// A key's step is the power of two that makes its largest code 64 to 120: then all codes down to an eighth of the
// largest power of two are integers (E4M3 has four significant bits), and smaller ones are rounded to the nearest.
#pragma once

#include "cpu/intrinsics.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/pack_bf16_avx512.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

inline std::size_t narrow_code_bytes(int head_dim) { return 64 * 64 * static_cast<std::size_t>((head_dim + 63) / 64); }
inline std::size_t narrow_panel_bytes(int head_dim) { return narrow_code_bytes(head_dim) + 2 * 64 * sizeof(float); }
inline void place_narrow(Panel& panel, std::byte* memory) {
  panel.narrow = memory;
  panel.step = reinterpret_cast<float*>(memory + narrow_code_bytes(panel.head_dim));
  panel.residual = panel.step + 64;
}

/// What a code becomes, and the square of what it loses, in 1/1020 and rounded up: it loses at most half a step.
struct NarrowTables {
  /// By magnitude code, once 8 (15 - largest exponent) is added: the largest has exponent 15 then, and code c stands
  /// for (8 + c mod 8) 2^(c / 8 - 12) steps.
  alignas(64) std::uint8_t steps[128], lost[128];
  /// Subnormal codes m 2^-9 keep their exponent: [min(largest exponent, 8) - 1][m] is m 2^(4 - exponent) steps.
  alignas(64) std::uint8_t small_steps[64], small_lost[64];
};

constexpr NarrowTables make_narrow_tables() {
  NarrowTables tables{};
  const auto round = [](std::int64_t numerator, std::int64_t denominator, std::uint8_t& steps, std::uint8_t& lost) {
    const std::int64_t nearest = (2 * numerator + denominator) / (2 * denominator);
    const std::int64_t error = numerator - nearest * denominator;  // over the denominator
    steps = static_cast<std::uint8_t>(nearest);
    lost =
        static_cast<std::uint8_t>((1020 * error * error + denominator * denominator - 1) / (denominator * denominator));
  };
  for (int c = 0; c < 128; ++c) {
    const int mantissa = 8 + c % 8, exponent = c / 8;
    if (exponent >= 12) {
      round(mantissa << (exponent - 12), 1, tables.steps[c], tables.lost[c]);
    } else {
      round(mantissa, 1 << (12 - exponent), tables.steps[c], tables.lost[c]);
    }
  }
  for (int e = 1; e <= 8; ++e) {
    for (int m = 0; m < 8; ++m) {
      const int at = 8 * (e - 1) + m;
      if (e <= 4) {
        round(m << (4 - e), 1, tables.small_steps[at], tables.small_lost[at]);
      } else {
        round(m, 1 << (e - 4), tables.small_steps[at], tables.small_lost[at]);
      }
    }
  }
  return tables;
}

// NOLINTNEXTLINE(misc-definitions-in-headers): one copy a file, see panel_kernels.hpp
alignas(64) constexpr NarrowTables kNarrowTables = make_narrow_tables();

/// Integers of 16 keys and what they come to, in steps: sums of squares of the integers and of what was lost.
struct NarrowSums {
  __m512i squares[2] = {}, lost[2] = {};
  [[nodiscard]] __m512 norm() const {
    return _mm512_sqrt_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(squares[0], squares[1])));
  }
  [[nodiscard]] __m512 residual() const {
    return _mm512_sqrt_ps(
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(lost[0], lost[1])), _mm512_set1_ps(1.0F / 1020.0F)));
  }
};

struct NarrowPacker {
  static constexpr int panel_keys = 64;

  /// Sums are integers below 2^23 and exact; the few roundings of their roots, product and sum are below 2^-20.
  static __m512 upward(__m512 x) { return _mm512_mul_ps(x, _mm512_set1_ps(1.0F + 0x1p-20F)); }

  template <bool, bool with_model>
  static __mmask16 lanes(const Lane* lane, const float*, const Panel& panel, int group) {
    std::byte* const data = panel.narrow + 1024 * group;
    const int chunks = panel.head_dim / 32;
    const auto place = [&](int chunk) { return data + chunk / 2 * 4096 + chunk % 2 * 512; };
    const __m512i magnitude = _mm512_set1_epi8(0x7f);
    __m512i most = _mm512_setzero_si512(), least = magnitude;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      __m512i column[8];
      load_columns(lane, 32 * chunk, column);
      __m512i chunk_most = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512i codes = _mm512_and_si512(column[j], magnitude);
        chunk_most = _mm512_max_epu8(chunk_most, codes);
        least = _mm512_min_epu8(least, codes);
        _mm512_store_si512(place(chunk) + 64 * j, column[j]);
      }
      most = _mm512_max_epu8(most, chunk_most);
      if constexpr (with_model)
        _mm512_storeu_ps(feature(panel, kModel + 2 * chunk, group), power_of_magnitudes(largest_of_four(chunk_most)));
    }
    if (chunks % 2 != 0) std::memset(place(chunks), 0, 512);

    const __m512i largest = largest_of_four(most);
    const __m512i exponent = _mm512_max_epi32(_mm512_srli_epi32(largest, 3), _mm512_set1_epi32(1));
    const __m512 step = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(114)), 23));
    // One code of 10^4 in the recorded traces is zero or subnormal: one group of 16 keys in six has such a one.
    const bool small = _mm512_cmplt_epu8_mask(least, _mm512_set1_epi8(8)) != 0;
    const NarrowSums sums = small ? integers<with_model, true>(panel, group, exponent, step)
                                  : integers<with_model, false>(panel, group, exponent, step);
    const __m512 residual = upward(_mm512_mul_ps(sums.residual(), step));
    _mm512_storeu_ps(panel.step + 16 * group, step);
    _mm512_storeu_ps(panel.residual + 16 * group, residual);
    const __m512 norm = norm_of(sums, step);
    _mm512_storeu_ps(feature(panel, kNorm, group), norm);
    _mm512_storeu_ps(feature(panel, kCentred, group), norm);
    return _mm512_cmpeq_epi32_mask(largest, _mm512_set1_epi32(0x7f));
  }

 private:
  static float* feature(const Panel& panel, int number, int group) {
    return panel.features + number * panel_keys + 16 * group;
  }
  static __m512 norm_of(const NarrowSums& sums, __m512 step) {
    return upward(_mm512_mul_ps(_mm512_add_ps(sums.norm(), sums.residual()), step));
  }
  static __m512i in_every_byte(__m512i number) { return _mm512_mullo_epi32(number, _mm512_set1_epi32(0x01010101)); }

  /// Codes in place become integers.
  template <bool with_model, bool small>
  static NarrowSums integers(const Panel& panel, int group, __m512i exponent, __m512 step) {
    const auto table = [](const std::uint8_t* from) { return _mm512_load_si512(from); };
    const __m512i steps_low = table(kNarrowTables.steps), steps_high = table(kNarrowTables.steps + 64);
    const __m512i lost_low = table(kNarrowTables.lost), lost_high = table(kNarrowTables.lost + 64);
    const __m512i magnitude = _mm512_set1_epi8(0x7f), zero = _mm512_setzero_si512();
    const __m512i shift = in_every_byte(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(15), exponent), 3));
    const __m512i small_row = in_every_byte(
        _mm512_slli_epi32(_mm512_sub_epi32(_mm512_min_epi32(exponent, _mm512_set1_epi32(8)), _mm512_set1_epi32(1)), 3));
    NarrowSums sums;
    for (int chunk = 0; chunk < panel.head_dim / 32; ++chunk) {
      if constexpr (with_model) _mm512_storeu_ps(feature(panel, kModel + 2 * chunk + 1, group), norm_of(sums, step));
      std::byte* const at = panel.narrow + 1024 * group + chunk / 2 * 4096 + chunk % 2 * 512;
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512i codes = _mm512_load_si512(at + 64 * j);
        const __m512i magnitudes = _mm512_and_si512(codes, magnitude);
        const __m512i entry = _mm512_add_epi8(magnitudes, shift);
        __m512i steps = _mm512_permutex2var_epi8(steps_low, entry, steps_high);
        __m512i lost = _mm512_permutex2var_epi8(lost_low, entry, lost_high);
        if constexpr (small) {
          const __mmask64 subnormal = _mm512_cmplt_epu8_mask(magnitudes, _mm512_set1_epi8(8));
          const __m512i place = _mm512_add_epi8(magnitudes, small_row);
          steps = _mm512_mask_permutexvar_epi8(steps, subnormal, place, table(kNarrowTables.small_steps));
          lost = _mm512_mask_permutexvar_epi8(lost, subnormal, place, table(kNarrowTables.small_lost));
        }
        sums.squares[j % 2] = _mm512_dpbusd_epi32(sums.squares[j % 2], steps, steps);
        sums.lost[j % 2] = _mm512_dpbusd_epi32(sums.lost[j % 2], lost, _mm512_set1_epi8(1));
        _mm512_store_si512(at + 64 * j, _mm512_mask_sub_epi8(steps, _mm512_movepi8_mask(codes), zero, steps));
      }
    }
    return sums;
  }
};

}  // namespace
}  // namespace dosa::cpu
