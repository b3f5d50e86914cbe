// Lanes of a panel of 64 keys that reach a row's floor, straight from registers into the row's lists: written for all
// keys and read again, bounds would push forms out of the first-level cache. Unnamed namespace: see panel_kernels.hpp.
#pragma once

#include <cstdint>

#include "cpu/intrinsics.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/threshold_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

struct Lanes512x4 : Lanes512 {
  static constexpr int vectors = 4, panel_keys = 64;
};

/// The lines that a row's lists go on in: a store to a line that is far away holds up all stores behind it, and loads
/// of what those wrote.
[[gnu::always_inline]] inline void fetch_lists(const ScreenRow& row) {
  const Candidates to = next_place(row);
  for (int line = 0; line < 32; line += 16) {
    __builtin_prefetch(to.key + line, 1, 3);
    __builtin_prefetch(to.upper + line, 1, 3);
    if (row.lower) __builtin_prefetch(to.lower + line, 1, 3);
  }
}

/// 16 lanes from `lane` on of a panel whose first key is `base`. store_lower(lanes, to) stores their lower bounds, or
/// does nothing.
template <class StoreLower>
[[gnu::always_inline]] inline void keep_group(ScreenRow& row, const Panel& panel, std::int32_t base, int lane,
                                              __m512 upper, const StoreLower& store_lower) {
  const SeenLanes seen(row, base, panel.count);
  const std::uint64_t lanes = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(seen.last)) &
                              ~_bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(seen.first));
  const __mmask16 reach = _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(lanes >> static_cast<unsigned>(lane)), upper,
                                                  _mm512_set1_ps(row.floor), _CMP_NLT_UQ);
  const PassedLanes passed(reach);
  const Candidates to = next_place(row);
  passed.store(to.key, _mm512_add_epi32(lane_numbers(lane), _mm512_set1_epi32(base)));
  passed.store(to.upper, upper);
  store_lower(passed, to.lower);
  row.count += passed.count;
}

/// `base`: the key of the panel's first lane. store_lower(v, lanes, to) stores the lower bounds of register v's lanes,
/// or does nothing.
template <class StoreLower>
[[gnu::always_inline]] inline void keep_lanes(ScreenRow& row, const Panel& panel, std::int32_t base,
                                              const __m512 (&upper)[4], const StoreLower& store_lower) {
  const SeenLanes seen(row, base, panel.count);
  const std::uint64_t lanes = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(seen.last)) &
                              ~_bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(seen.first));
  const __m512 floor = _mm512_set1_ps(row.floor);
  __mmask16 reach[4];
  for (int v = 0; v < 4; ++v) {
    reach[v] = _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(lanes >> static_cast<unsigned>(16 * v)), upper[v], floor,
                                       _CMP_NLT_UQ);
  }
  if (_kortestz_mask16_u8(_kor_mask16(reach[0], reach[1]), _kor_mask16(reach[2], reach[3])) != 0) return;
  const Candidates to = next_place(row);
  const __m512i first = _mm512_set1_epi32(base);
  std::int64_t found = 0;
  for (int v = 0; v < 4; ++v) {
    const PassedLanes passed(reach[v]);
    passed.store(to.key + found, _mm512_add_epi32(lane_numbers(16 * v), first));
    passed.store(to.upper + found, upper[v]);
    store_lower(v, passed, to.lower + found);
    found += passed.count;
  }
  row.count += found;
}

}  // namespace
}  // namespace dosa::cpu
