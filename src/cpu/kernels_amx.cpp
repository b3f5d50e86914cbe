// The kernel table for AMX: bf16 tile products, everything else AVX-512. Tile data needs the kernel's permission:
// dispatch asks for it before this table is handed out.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include "cpu/amx_panels.hpp"
#include "cpu/amx_tiles.hpp"

namespace dosa::cpu {
namespace {

constexpr Kernels kKernels = amx_table<Tiles>();

}  // namespace

const Kernels* amx_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* amx_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
