#include "cpu/peak.hpp"

#if defined(__AVX512F__)
#include "cpu/intrinsics.hpp"

namespace dosa::cpu {

double peak::avx512(long rounds) noexcept {
  constexpr int kSums = 24;
  __m512 sum[kSums];
  for (__m512& s : sum) s = _mm512_set1_ps(1e-3F);
  const __m512 a = _mm512_set1_ps(0.999F), b = _mm512_set1_ps(1e-4F);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (auto& s : sum) s = _mm512_fmadd_ps(s, a, b);
  }
  for (__m512& s : sum) __asm__ volatile("" : "+m"(s));
  return static_cast<double>(rounds) * kSums * 16 * 2;
}

}  // namespace dosa::cpu
#else
double dosa::cpu::peak::avx512(long) noexcept { return 0; }
#endif
