// The kernel table for AMX: bf16 tile products, everything else AVX-512. Tile data needs the kernel's permission:
// dispatch asks for it before this table is handed out.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "cpu/amx_panels.hpp"
#include "cpu/amx_tiles.hpp"
#include "cpu/model_scores.hpp"
#include "cpu/row_loops_avx512.hpp"
#include "cpu/threshold_avx512.hpp"

namespace dosa::cpu {
namespace {

using Table = AmxKernels<Tiles>;

constexpr Kernels kKernels{Isa::amx, Table::keys, bf16_arithmetic, Table::panel_bytes, Table::form_bytes,
                           Table::make_panel, pack_panel<Bf16Sink>, Table::make_form, Table::upper, Table::bounds,
                           Table::screen, Table::dots, avx512::model_bytes, avx512::model_row, avx512::model_scores,
                           count_not_below_512, positions_between_512, values_between_512, keep_not_below_512,
                           kRowLoops512,
                           // Products are so cheap here that gathering a survivor costs several of them.
                           Costs{.refine = 5, .key = 0.28},
                           // Packing a key takes as long as three dense rows of it.
                           32};

}  // namespace

const Kernels* amx_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* amx_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
