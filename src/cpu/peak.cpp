#include "cpu/peak.hpp"

#include <chrono>

#include "cpu/dispatch.hpp"
#include "cpu/float_environment.hpp"

namespace dosa::cpu {
namespace {

double best_rate(double (*run)(long)) {
  using Clock = std::chrono::steady_clock;
  const FloatEnvironment environment;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const auto timed = [&](long rounds) {
    const auto start = Clock::now();
    const double operations = run(rounds);
    return operations / seconds(Clock::now() - start);
  };
  timed(20000);  // wide units and the clock wake up
  constexpr long kRounds = 20000;
  double best = 0;
  const auto start = Clock::now();
  do {
    const double rate = timed(kRounds);
    best = rate > best ? rate : best;
  } while (seconds(Clock::now() - start) < 0.06);
  return best * 1e-9;
}

}  // namespace

double measured_peak(Isa isa) {
  switch (choose(isa).kernels->isa) {
    case Isa::amx:
      return best_rate(peak::amx);
    case Isa::avx512bf16:
      return best_rate(peak::avx512bf16);
    case Isa::avx512:
      return best_rate(peak::avx512);
    case Isa::avx2:
      return best_rate(peak::avx2);
    default:
      return best_rate(peak::portable);
  }
}

}  // namespace dosa::cpu
