// The K-th largest of many floats without a copy of them.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/kernels.hpp"

namespace dosa {

/// Scratch of one call: values inside the last bracket.
struct KthScratch {
  static constexpr std::int64_t kValues = 1024;
  float values[kValues + 16];
};

/// The k-th largest of values[0..count), 1 <= k <= count; no value is NaN. -0 equals +0, so either may be returned for
/// the other.
[[nodiscard]] float kth_largest(const cpu::Kernels& kernels, std::span<const float> values, std::int64_t k,
                                KthScratch& scratch) noexcept;

}  // namespace dosa
