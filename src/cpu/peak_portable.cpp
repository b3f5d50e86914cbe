#include "cpu/peak.hpp"

namespace dosa::cpu {

double peak::portable(long rounds) noexcept {
  using Vector = float __attribute__((vector_size(16)));
  constexpr int kSums = 12;
  Vector sum[kSums] = {};
  Vector a{1.5F, 1.25F, 0.75F, 0.5F};
  for (long i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+m"(a));  // keeps the products inside the loop
    const Vector b = a;
#pragma GCC unroll 12
    for (Vector& s : sum) s += b * s;
  }
  for (Vector& s : sum) __asm__ volatile("" : "+m"(s));
  return static_cast<double>(rounds) * kSums * 4 * 2;
}

}  // namespace dosa::cpu
