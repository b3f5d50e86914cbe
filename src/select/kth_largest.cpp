#include "select/kth_largest.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace dosa {
namespace {

// A pass over the values costs less than partitioning a few hundred of them.
constexpr std::int64_t kFewValues = KthScratch::kValues;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Position of a float in the order of the reals: bisecting it halves the number of floats left, whatever their spacing.
std::int32_t ordinal(float value) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits >= 0 ? bits : std::numeric_limits<std::int32_t>::min() - bits;
}

float at_ordinal(std::int32_t position) noexcept {
  return std::bit_cast<float>(position >= 0 ? position : std::numeric_limits<std::int32_t>::min() - position);
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

  // A sorted sample brackets the answer in two passes for almost every distribution; the bisection below needs no luck.
  constexpr std::int64_t kSample = 128;
  if (count > kFewValues) {
    for (std::int64_t s = 0; s < kSample; ++s)
      scratch.values[s] = values[static_cast<std::size_t>((2 * s + 1) * count / (2 * kSample))];
    std::sort(scratch.values, scratch.values + kSample, std::greater<>());
    const double expected = static_cast<double>(k) / static_cast<double>(count) * kSample;
    const double margin = 2.5 * std::sqrt(expected) + 1;
    const auto try_bracket = [&](double position) {
      const auto s = static_cast<std::int64_t>(position);
      if (s < 0 || s >= kSample) return;
      const float value = scratch.values[s];
      if (!(value > low) || !(value < high)) return;
      narrow(value);
    };
    try_bracket(expected + margin);
    try_bracket(expected - margin);
  }
  while (from_low - from_high > kFewValues) {
    const std::int64_t middle = (std::int64_t{ordinal(low)} + ordinal(high)) / 2;
    const float value = at_ordinal(static_cast<std::int32_t>(middle));
    if (!(value > low) || !(value < high)) return low;  // neighbours: nothing lies between them
    narrow(value);
  }

  std::int64_t kept = 0;
  for (std::int64_t first = 0; first < count; first += KthScratch::kBlock) {
    const std::int64_t block = std::min(KthScratch::kBlock, count - first);
    const std::int64_t found = kernels.compress_not_below(values.data() + first, block, low, 0, scratch.positions);
    for (std::int64_t j = 0; j < found; ++j) {
      const float value = values[static_cast<std::size_t>(first + scratch.positions[j])];
      if (value < high) scratch.values[kept++] = value;
    }
  }
  const std::int64_t rank = k - from_high - 1;
  std::nth_element(scratch.values, scratch.values + rank, scratch.values + kept, std::greater<>());
  return scratch.values[rank];
}

}  // namespace dosa
