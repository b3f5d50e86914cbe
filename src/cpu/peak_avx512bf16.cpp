#include "cpu/peak.hpp"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include "cpu/intrinsics.hpp"

namespace dosa::cpu {

double peak::avx512bf16(long rounds) noexcept {
  constexpr int kSums = 24;
  __m512 sum[kSums];
  for (__m512& s : sum) s = _mm512_set1_ps(1e-3F);
  // 0.25 and 2^-12 in both halves: sums stay finite, whatever the number of rounds.
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3e803e80));
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x39803980));
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (auto& s : sum) s = _mm512_dpbf16_ps(s, a, b);
  }
  for (__m512& s : sum) __asm__ volatile("" : "+m"(s));
  return static_cast<double>(rounds) * kSums * 16 * 4;
}

}  // namespace dosa::cpu
#else
double dosa::cpu::peak::avx512bf16(long) noexcept { return 0; }
#endif
