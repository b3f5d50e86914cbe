// Where the keys of one panel lie, one entry a lane. In an unnamed namespace for the reason given in panel_kernels.hpp.
#pragma once

#include <cstdint>

#include "contract/key_source.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

// What lanes without a key read.
alignas(64) constexpr std::uint8_t kNoCodes[256] = {};  // NOLINT(misc-definitions-in-headers)

struct Lane {
  const std::uint8_t* codes;
  float scale;  // NaN for a key that no bound may speak of: NaN, infinite or negative scale, or no page
};

/// Finds all keys first, so that the cache misses of their scales overlap. Who packs has fetched the codes
/// (fetch_keys).
template <int lanes>
inline void find_lanes(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, Lane* lane) {
  const float* scale[lanes];
  for (int i = 0; i < count; ++i) {
    const KeyAddress at = keys.locate(index != nullptr ? index[i] : first + i);
    lane[i].codes = at.codes;
    scale[i] = at.scale;
  }
  for (int i = 0; i < count; ++i) {
    if (lane[i].codes == nullptr) {
      lane[i] = {kNoCodes, __builtin_nanf("")};
      continue;
    }
    const float s = *scale[i];
    lane[i].scale = s >= 0.0F && s <= __FLT_MAX__ ? s : __builtin_nanf("");
  }
  for (int i = count; i < lanes; ++i) lane[i] = {kNoCodes, 0.0F};
}

}  // namespace
}  // namespace dosa::cpu
