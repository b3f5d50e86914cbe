// The window and the forced keys of a row: the one place that knows which keys a row may see.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dosa {

/// Visible keys of a row in whole-sequence indices: first <= i < last (first == last: none).
struct Window {
  std::int64_t first = 0, last = 0;
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return last - first; }
  friend constexpr bool operator==(const Window&, const Window&) = default;
};

/// max(ks,0) <= i < min(ke,N); empty where ke <= ks. `total_keys` is the whole sequence's N.
[[nodiscard]] constexpr Window window_of(std::int32_t ks, std::int32_t ke, std::int64_t total_keys) noexcept {
  const std::int64_t first = std::max<std::int64_t>(ks, 0);
  const std::int64_t last = std::min<std::int64_t>(ke, total_keys);
  return last > first ? Window{first, last} : Window{first, first};
}

/// Forced keys: the first n and the last m visible keys of the whole window. They rank before all others by index.
struct Forced {
  Window window;
  std::int64_t head_last = 0;   ///< forced: window.first <= i < head_last
  std::int64_t tail_first = 0;  ///< forced: tail_first <= i < window.last
  [[nodiscard]] constexpr bool contains(std::int64_t i) const noexcept {
    return (i >= window.first && i < head_last) || (i >= tail_first && i < window.last);
  }
};

[[nodiscard]] constexpr Forced forced_of(const Window& window, std::int64_t always_first,
                                         std::int64_t always_last) noexcept {
  const std::int64_t head = std::min(always_first, window.size());
  const std::int64_t tail = std::min(always_last, window.size());
  return {window, window.first + head, std::max(window.first + head, window.last - tail)};
}

/// The part of a window that a shard holds: first_key .. first_key + keys - 1.
[[nodiscard]] constexpr Window clip(const Window& window, std::int64_t first_key, std::int64_t keys) noexcept {
  const std::int64_t first = std::clamp(window.first, first_key, first_key + keys);
  const std::int64_t last = std::clamp(window.last, first_key, first_key + keys);
  return {first, std::max(first, last)};
}

}  // namespace dosa
