#include "select/predicted_threshold.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dosa {
namespace {

// Standard deviations of the estimated count. A wrong prediction costs a second pass over a row's keys, a careful one a
// few thousand candidates more: three deviations miss about one row in five hundred.
constexpr double kDeviations = 3;

}  // namespace

float predicted_threshold(std::span<SampledScore> sample, double wanted) noexcept {
  const auto smaller = [](const SampledScore& a, const SampledScore& b) { return a.score < b.score; };
  std::make_heap(sample.begin(), sample.end(), smaller);
  double count = 0, variance = 0;  // of a sum of Poisson counts, each in units of its weight
  for (auto last = sample.end(); last != sample.begin(); --last) {
    std::pop_heap(sample.begin(), last, smaller);
    const SampledScore& next = *(last - 1);
    const double weight = static_cast<double>(next.weight);
    count += weight;
    variance += weight * weight;
    if (count - kDeviations * std::sqrt(variance) >= wanted) return next.score;
  }
  return -std::numeric_limits<float>::infinity();
}

}  // namespace dosa
