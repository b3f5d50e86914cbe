// A generator whose numbers are the same on every machine and standard library (std distributions are not).
#pragma once

#include <cstdint>
#include <utility>

namespace dosa::workloads {

/// splitmix64: any seed is good, one addition and three xor-shifts a number.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t bits() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  /// 0 <= result < bound; bound >= 1. The bias of the multiplication (below 2^-31 here) does not matter to a test.
  std::int64_t below(std::int64_t bound) noexcept {
    return static_cast<std::int64_t>((static_cast<unsigned __int128>(bits()) * static_cast<std::uint64_t>(bound)) >>
                                     64);
  }

  /// [0, 1) in steps of 2^-53.
  double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) noexcept { return low + (high - low) * uniform(); }

  /// Twelve uniforms: close to N(0,1) for our purpose, and exact sums, so the same bits everywhere (no libm).
  double normal() noexcept {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  bool chance(double probability) noexcept { return uniform() < probability; }

  template <class Container>
  void shuffle(Container& values) noexcept {
    for (auto i = static_cast<std::int64_t>(values.size()) - 1; i > 0; --i) {
      using std::swap;
      swap(values[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(below(i + 1))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace dosa::workloads
