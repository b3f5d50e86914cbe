// The total order: higher score first (as F32 numbers, so -0 equals +0), equal scores by smaller index.
#pragma once

#include <cmath>
#include <cstdint>

namespace dosa {

struct Entry {
  float score;
  std::int32_t index;
};

/// True where `a` comes before `b`. Neither score may be NaN (a NaN is never selectable).
[[nodiscard]] constexpr bool before(const Entry& a, const Entry& b) noexcept {
  return a.score > b.score || (a.score == b.score && a.index < b.index);
}

[[nodiscard]] inline bool selectable(float score) noexcept { return !std::isnan(score); }

}  // namespace dosa
