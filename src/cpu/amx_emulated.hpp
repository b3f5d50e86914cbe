// The AMX kernels over emulated tiles, for tests on machines without AMX. Needs AVX-512 for everything but the tiles.
#pragma once

#include "cpu/kernels.hpp"

namespace dosa::cpu {
/// nullptr where the build lacks AVX-512.
[[nodiscard]] const Kernels* amx_emulated_kernels() noexcept;
}  // namespace dosa::cpu
