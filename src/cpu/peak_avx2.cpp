#include "cpu/peak.hpp"

#if defined(__AVX2__) && defined(__FMA__)
#include "cpu/intrinsics.hpp"

namespace dosa::cpu {

double peak::avx2(long rounds) noexcept {
  constexpr int kSums = 14;
  __m256 sum[kSums];
  for (__m256& s : sum) s = _mm256_set1_ps(1e-3F);
  const __m256 a = _mm256_set1_ps(0.999F), b = _mm256_set1_ps(1e-4F);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 14
    for (auto& s : sum) s = _mm256_fmadd_ps(s, a, b);
  }
  for (__m256& s : sum) __asm__ volatile("" : "+m"(s));
  return static_cast<double>(rounds) * kSums * 8 * 2;
}

}  // namespace dosa::cpu
#else
double dosa::cpu::peak::avx2(long) noexcept { return 0; }
#endif
