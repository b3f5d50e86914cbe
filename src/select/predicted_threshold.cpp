#include "select/predicted_threshold.hpp"

#include <cmath>
#include <limits>

#include "select/float_order.hpp"

namespace dosa {
namespace {

// Standard deviations of the estimated count. A wrong prediction costs a second pass over a row's keys, a careful one a
// few thousand candidates more: three deviations miss about one row in five hundred.
constexpr double kDeviations = 3;

}  // namespace

float predicted_threshold(const cpu::Kernels& kernels, std::span<const Stratum> sample, double wanted) noexcept {
  const auto sure = [&](float threshold) {
    double count = 0, variance = 0;  // of a sum of Poisson counts, each in units of its weight
    for (const Stratum& stratum : sample) {
      const auto found = static_cast<double>(
          kernels.count_not_below(stratum.scores.data(), static_cast<std::int64_t>(stratum.scores.size()), threshold));
      const auto weight = static_cast<double>(stratum.weight);
      count += weight * found;
      variance += weight * weight * found;
    }
    return count - kDeviations * std::sqrt(variance) >= wanted;
  };
  // Invariant: sure of low, not of high.
  float low = std::numeric_limits<float>::lowest(), high = std::numeric_limits<float>::infinity();
  if (!sure(low)) return -high;
  for (;;) {
    const float middle = halfway(low, high);
    if (!(middle > low) || !(middle < high)) return low;  // neighbours: a score is there, or both counts were one
    (sure(middle) ? low : high) = middle;
  }
}

}  // namespace dosa
