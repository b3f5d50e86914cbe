// The kernel table for AVX-512 with bf16 products (VDPBF16PS): two dimensions an instruction where F32 has one.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512BF16__)
#include "cpu/bf16_avx512.hpp"
#include "cpu/model_scores.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/row_loops_avx512.hpp"
#include "cpu/threshold_avx512.hpp"

namespace dosa::cpu {
namespace {

/// A step takes the dimensions (d, d + 16) of a chunk of 32: the pairs that packing finds in two registers.
struct LanesBf16 : Lanes512 {
  static int steps(int head_dim) { return head_dim / 2; }
  static void row_elements(const float* row, int head_dim, float* out) {
    const __m512 factor = _mm512_set1_ps(kRowFactor);
    const auto stored = [&](const float* from) { return bf16_of(_mm512_mul_ps(_mm512_loadu_ps(from), factor)); };
    for (int d = 0; d < head_dim; d += 32, out += 16)
      _mm512_storeu_si512(out, pairs_of(stored(row + d), stored(row + d + 16)));
  }
  static Vector accumulate(Vector row, Vector key, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(row), reinterpret_cast<__m512bh>(key));
  }
};

struct PairSink {
  static constexpr int panel_keys = LanesBf16::panel_keys;
  static void store(std::byte* data, int group, int d, __m512 low, __m512 high) {
    _mm512_store_si512(reinterpret_cast<float*>(data) + (d / 32 * 16 + d % 32) * panel_keys + 16 * group,
                       bf16_pairs(low, high));
  }
};

using Table = PanelKernels<LanesBf16>;

constexpr Kernels kKernels{Isa::avx512bf16,       Table::keys,        bf16_arithmetic,      Table::panel_bytes,
                           Table::form_bytes,     Table::make_panel,  pack_panel<PairSink>, Table::make_form,
                           Table::upper,          Table::bounds,      Table::screen,        Table::dots,
                           avx512::model_bytes,   avx512::model_row,  avx512::model_scores, count_not_below_512,
                           positions_between_512, values_between_512, keep_not_below_512,   kRowLoops512};

}  // namespace

const Kernels* avx512bf16_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* avx512bf16_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
