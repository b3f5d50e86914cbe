// The kernel table for AVX-512 (F, BW, VL, DQ): F32 multiply-add.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "cpu/model_scores.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/row_loops_avx512.hpp"
#include "cpu/threshold_avx512.hpp"

namespace dosa::cpu {
namespace {

struct F32Sink {
  static constexpr int panel_keys = Lanes512::panel_keys;
  static void store(std::byte* data, int group, int d, __m512 low, __m512 high) {
    float* at = reinterpret_cast<float*>(data) + d * panel_keys + 16 * group;
    _mm512_store_ps(at, low);
    _mm512_store_ps(at + 16 * panel_keys, high);
  }
};

/// A chain of D fused multiply-adds in round to nearest (FloatEnvironment sets it): each of its D roundings is at most
/// u = 2^-24 of a partial sum, and partial sums are at most (1+u)^D sum |row_d k_d|: D u (1+u)^D <= D u (1 + 2^-15).
Arithmetic arithmetic(int head_dim) { return {head_dim * 0x1p-24 * (1 + 0x1p-15), 0.0, 0x1p-24}; }

using Table = PanelKernels<Lanes512>;

constexpr Kernels kKernels{Isa::avx512,           Table::keys,        arithmetic,           Table::panel_bytes,
                           Table::form_bytes,     Table::make_panel,  pack_panel<F32Sink>,  Table::make_form,
                           Table::upper,          Table::bounds,      Table::screen,        Table::dots,
                           avx512::model_bytes,   avx512::model_row,  avx512::model_scores, count_not_below_512,
                           positions_between_512, values_between_512, keep_not_below_512,   kRowLoops512};

}  // namespace

const Kernels* avx512_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* avx512_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
