#include "select/kth_largest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "select/float_order.hpp"

namespace dosa {
namespace {

// Copying more than these would cost more than another pass over all of them.
constexpr std::int64_t kFewValues = KthScratch::kValues;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The k-th largest of a few finite values, which it reorders. Partitioning by a table's functions takes a few passes
/// over registers; std::nth_element branches on every value.
float kth_of_few(const cpu::Kernels& kernels, float* values, std::int64_t count, std::int64_t k) noexcept {
  for (;;) {
    const float pivot = values[count / 2];
    const float next = at_ordinal(ordinal(pivot) + 1);
    const std::int64_t above = kernels.count_not_below(values, count, next);
    if (k <= above) {
      count = kernels.values_between(values, count, next, kInfinity, values);
      continue;
    }
    const std::int64_t below = count - kernels.count_not_below(values, count, pivot);
    if (k <= count - below) return pivot;
    k -= count - below;
    count = kernels.values_between(values, count, -kInfinity, pivot, values);
  }
}

}  // namespace

float kth_largest(const cpu::Kernels& kernels, std::span<const float> values, std::int64_t k,
                  KthScratch& scratch) noexcept {
  const auto count = static_cast<std::int64_t>(values.size());
  const auto count_from = [&](float threshold) { return kernels.count_not_below(values.data(), count, threshold); };

  // Invariant: at least k values are >= low (counted in from_low), fewer than k are >= high.
  float low = -kInfinity, high = std::nextafter(kInfinity, 0.0F);
  std::int64_t from_low = count, from_high = count_from(high);
  if (from_high >= k) {
    if (count_from(kInfinity) >= k) return kInfinity;
    return high;
  }

  const auto narrow = [&](float value) {
    const std::int64_t found = count_from(value);
    if (found >= k) {
      low = value;
      from_low = found;
    } else {
      high = value;
      from_high = found;
    }
  };

  // A sample brackets the answer in two passes for almost every distribution; the bisection below needs no luck.
  constexpr std::int64_t kSample = 128;
  if (count > kFewValues) {
    float sample[kSample + 16];
    for (std::int64_t s = 0; s < kSample; ++s)
      sample[s] = values[static_cast<std::size_t>((2 * s + 1) * count / (2 * kSample))];
    const std::int64_t finite = kernels.values_between(sample, kSample, std::nextafter(-kInfinity, 0.0F), high, sample);
    const double expected = static_cast<double>(k - from_high) / static_cast<double>(count) * kSample;
    const double margin = 2.5 * std::sqrt(expected) + 1;
    const auto try_bracket = [&](double position) {
      const auto rank = static_cast<std::int64_t>(position) + 1;
      if (position < 0 || rank > finite) return;
      std::copy(sample, sample + finite, scratch.values);
      const float value = kth_of_few(kernels, scratch.values, finite, rank);
      if (!(value > low) || !(value < high)) return;
      narrow(value);
    };
    try_bracket(expected + margin);
    try_bracket(expected - margin);
  }
  while (from_low - from_high > kFewValues) {
    const float value = halfway(low, high);
    if (!(value > low) || !(value < high)) return low;  // neighbours: nothing lies between them
    narrow(value);
  }

  const std::int64_t kept = kernels.values_between(values.data(), count, low, high, scratch.values);
  return kth_of_few(kernels, scratch.values, kept, k - from_high);
}

}  // namespace dosa
