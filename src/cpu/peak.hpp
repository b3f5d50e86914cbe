// What one core can multiply and add, measured: the yardstick of `dosa info`, `dosa bench` and the benchmarks.
#pragma once

#include "dosa/types.hpp"

namespace dosa::cpu {

/// GFLOP/s of one core in independent multiply-adds of the kind that the instruction set's kernels use: F32 (portable:
/// a multiplication and an addition), bf16 pairs (avx512bf16), bf16 tile products (amx). Takes about 60 ms: the best of
/// many short runs, so that a shared machine is measured where it was not disturbed. Throws Error{not_available} where
/// choose() would.
[[nodiscard]] double measured_peak(Isa isa);

/// One file an instruction set: `rounds` rounds of independent multiply-adds; returns the floating-point operations
/// done.
namespace peak {
double portable(long rounds) noexcept;
double avx2(long rounds) noexcept;
double avx512(long rounds) noexcept;
double avx512bf16(long rounds) noexcept;
double amx(long rounds) noexcept;
}  // namespace peak

}  // namespace dosa::cpu
