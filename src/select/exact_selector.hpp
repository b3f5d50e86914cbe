// Streaming selection of the best entries by the total order in a bounded buffer: compacted exactly when full, so no
// candidate is ever dropped for lack of room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "contract/total_order.hpp"

namespace dosa {

class ExactSelector {
 public:
  /// Room that makes compaction rare; any buffer of more than `wanted` entries is enough for exactness.
  [[nodiscard]] static constexpr std::int64_t buffer_entries(std::int64_t wanted) noexcept { return 2 * wanted + 64; }

  ExactSelector(std::span<Entry> buffer, std::int64_t wanted) noexcept
      : buffer_(buffer), wanted_(static_cast<std::size_t>(wanted)) {}

  /// `entry.score` is not NaN; each index is pushed at most once.
  void push(const Entry& entry) noexcept {
    if (wanted_ == 0 || (bounded_ && !before(entry, worst_))) return;
    buffer_[count_++] = entry;
    if (count_ == buffer_.size()) compact();
  }

  /// The best min(wanted, pushed) entries, in no particular order.
  [[nodiscard]] std::span<Entry> finish() noexcept {
    if (count_ > wanted_) compact();
    return buffer_.first(count_);
  }

 private:
  void compact() noexcept {
    const auto first = buffer_.begin();
    const auto last_kept = first + static_cast<std::ptrdiff_t>(wanted_ - 1);
    std::nth_element(first, last_kept, first + static_cast<std::ptrdiff_t>(count_), before);
    count_ = wanted_;
    worst_ = *last_kept;
    bounded_ = true;
  }

  std::span<Entry> buffer_;
  std::size_t wanted_;
  std::size_t count_ = 0;
  Entry worst_{};
  bool bounded_ = false;
};

}  // namespace dosa
