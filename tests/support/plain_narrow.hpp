// Narrow forms (T11) in plain C++: what a kernel with them computes, for tests on machines whose kernels have none.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.hpp"

namespace dosa::test {

/// A key k = step * integers + rest. The step is the power of two that makes the largest code 64 to 120.
struct NarrowKey {
  std::vector<int> integers;
  double step = 1;
  double residual = 0;  ///< |rest|, to within 2^-50
};
[[nodiscard]] NarrowKey narrow_key(const std::uint8_t* codes, int head_dim);

/// The kernels of `base` with narrow forms of their own, packed keys and gathered bounds, under the name of the tiles
/// (cpu::tiles_stand_in). One set of them is alive at a time: a table holds functions without state.
[[nodiscard]] cpu::Kernels with_plain_narrow(const cpu::Kernels& base);

}  // namespace dosa::test
