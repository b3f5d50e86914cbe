// What one core can multiply and add, measured: the yardstick of `dosa info`, `dosa bench` and the benchmarks.
#pragma once

#include "dosa/types.hpp"

namespace dosa::cpu {

/// GFLOP/s of one core in independent F32 multiply-adds of the instruction set (portable: a multiplication and an
/// addition, as its kernels use them; amx: the AVX-512 ones). Takes about 60 ms: the best of many short runs, so that a
/// shared machine is measured where it was not disturbed. Throws Error{not_available} where choose() would.
[[nodiscard]] double measured_f32_fma_peak(Isa isa);

/// GFLOP/s of one core in independent bf16 tile products (TDPBF16PS). Throws Error{not_available} where choose() would.
[[nodiscard]] double measured_bf16_amx_peak();

/// One file an instruction set: `rounds` rounds of independent multiply-adds; returns the floating-point operations
/// done.
namespace peak {
double portable(long rounds) noexcept;
double avx2(long rounds) noexcept;
double avx512(long rounds) noexcept;
double amx(long rounds) noexcept;
}  // namespace peak

}  // namespace dosa::cpu
