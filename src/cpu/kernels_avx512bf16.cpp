// The kernel table for AVX-512 with bf16 products (VDPBF16PS): two dimensions an instruction where F32 has one.
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512BF16__)
#include "cpu/bf16_avx512.hpp"
#include "cpu/pack_bf16_avx512.hpp"
#include "cpu/table_avx512.hpp"

namespace dosa::cpu {
namespace {

/// A step takes a pair of dimensions, in the order of packing.
struct LanesBf16 : Lanes512 {
  static int steps(int head_dim) { return head_dim / 2; }
  static void row_elements(const float* row, int head_dim, float* out) {
    for (int d = 0; d < head_dim; d += 32, out += 16) _mm512_storeu_si512(out, row_pairs(row + d));
  }
  static Vector accumulate(Vector row, Vector key, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(row), reinterpret_cast<__m512bh>(key));
  }
};

struct PairSink {
  static constexpr int panel_keys = LanesBf16::panel_keys;
  static void store(std::byte* data, int group, int chunk, int pair, __m512i pairs) {
    _mm512_store_si512(reinterpret_cast<float*>(data) + (chunk * 16 + pair) * panel_keys + 16 * group, pairs);
  }
  static void add_squares(__m512i pairs, int pair, __m512 (&sum)[4]) {
    sum[pair % 4] =
        _mm512_dpbf16_ps(sum[pair % 4], reinterpret_cast<__m512bh>(pairs), reinterpret_cast<__m512bh>(pairs));
  }
};

using Table = PanelKernels<LanesBf16>;

constexpr Kernels kKernels =
    table_512<Table, PairPacker<PairSink>>(Isa::avx512bf16, bf16_arithmetic, Table::screen<keep_not_below_512>);

}  // namespace

const Kernels* avx512bf16_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* avx512bf16_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
