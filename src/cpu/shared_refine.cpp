#include "cpu/shared_refine.hpp"

#include <algorithm>
#include <atomic>
#include <bit>

namespace dosa::cpu {
namespace {

// Rows are charged by stretches, which do not depend on how many threads share the tile; as short as keeps a slice's
// last, part-full panel a small share (a stretch of a 64K-key tile holds about four panels of its union).
constexpr std::int64_t kStretch = 2048;

/// Where each row's list stands.
using Cursors = std::array<std::int64_t, kScreenRows>;

template <class Parts>
Cursors cursors_at(const Parts& parts, std::int64_t first_key) {
  Cursors at{};
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::int32_t* const key = parts[r].refined.key;
    at[r] = std::lower_bound(key, key + parts[r].count, first_key) - key;
  }
  return at;
}

}  // namespace

/// The marked keys of a slice, panel by panel. Those of a panel lie so near to each other that a table of their lanes
/// stays in the first-level cache.
class SharedRefine::Marked {
 public:
  Marked(const std::uint64_t* words, const Window& keys)
      : next_(words), end_(words + (keys.size() + 63) / 64), base_(keys.first) {}

  int take(int most, std::int32_t* keys) {
    int count = 0;
    while (count < most) {
      while (word_ == 0) {
        if (next_ == end_) return count;
        word_ = *next_++;
        word_base_ = base_;
        base_ += 64;
      }
      const std::int64_t key = word_base_ + std::countr_zero(word_);
      if (count > 0 && key - keys[0] >= kLaneKeys) return count;
      keys[count++] = static_cast<std::int32_t>(key);
      word_ &= word_ - 1;
    }
    return count;
  }

 private:
  const std::uint64_t* next_;
  const std::uint64_t* end_;
  std::int64_t base_, word_base_ = 0;
  std::uint64_t word_ = 0;
};

SharedRefine::SharedRefine(const TileContext& tile, const Window& keys, std::uint64_t* marks, std::span<RowWork> works,
                           std::int64_t tasks)
    : tile_(tile), kernels_(*tile.layout->kernels), keys_(keys) {
  std::size_t count = 0;
  for (RowWork& work : works) {
    if (work.first_keys.count == 0 || count == parts_.size()) continue;
    parts_[count++] = {&work, refined_keys(kernels_, work), work.first_keys.count, 0};
  }
  const auto rows = static_cast<std::int64_t>(count);
  group_count_ = rows < 2 ? 0 : shared_groups(kernels_.costs.together, rows);
  if (group_count_ == 0) return;
  for (std::int64_t g = 0; g < group_count_; ++g) {
    const std::int64_t first = g * rows / group_count_, last = (g + 1) * rows / group_count_;
    groups_[static_cast<std::size_t>(g)] = {{parts_.data() + first, static_cast<std::size_t>(last - first)},
                                            marks + g * mark_words(keys_.size())};
  }
  slices_ = std::clamp<std::int64_t>(tasks / group_count_, 1, (keys_.size() + kStretch - 1) / kStretch);
}

Window SharedRefine::slice_of(std::int64_t task) const noexcept {
  const std::int64_t stretches = (keys_.size() + kStretch - 1) / kStretch;
  const auto start = [&](std::int64_t number) {
    return std::min(keys_.last, keys_.first + number * stretches / slices_ * kStretch);
  };
  return {start(task % slices_), start(task % slices_ + 1)};
}

void SharedRefine::mark(std::int64_t task) {
  Group& group = groups_[static_cast<std::size_t>(task / slices_)];
  const Window keys = slice_of(task);
  Cursors at = cursors_at(group.parts, keys.first);
  Cursors charged{};
  std::int64_t united = 0;
  for (std::int64_t first = keys.first; first < keys.last; first += kStretch) {
    const std::int64_t last = std::min(keys.last, first + kStretch);
    std::uint64_t* const words = group.marks + (first - keys_.first) / 64;
    const std::span<std::uint64_t> stretch{words, static_cast<std::size_t>(mark_words(last - first))};
    std::fill(stretch.begin(), stretch.end(), 0);
    const Cursors before = at;
    for (std::size_t r = 0; r < group.parts.size(); ++r) {
      const Part& part = group.parts[r];
      std::int64_t j = at[r];
      for (; j < part.count && part.refined.key[j] < last; ++j) {
        const auto place = static_cast<std::uint64_t>(part.refined.key[j] - first);
        words[place / 64] |= std::uint64_t{1} << (place % 64);
      }
      at[r] = j;
    }
    std::int64_t marked = 0;
    for (const std::uint64_t word : stretch) marked += std::popcount(word);
    united += marked;
    for (std::size_t r = 0; r < group.parts.size(); ++r) charged[r] += at[r] > before[r] ? marked : 0;
  }
  const auto add = [](std::int64_t& sum, std::int64_t more) {
    std::atomic_ref(sum).fetch_add(more, std::memory_order_relaxed);
  };
  add(group.united, united);
  for (std::size_t r = 0; r < group.parts.size(); ++r) add(group.parts[r].charged, charged[r]);
}

bool SharedRefine::pays(const Group& group) const noexcept {
  const SharedCosts& costs = kernels_.costs.together;
  double listed = 0, charged = 0;
  for (const Part& part : group.parts) {
    listed += static_cast<double>(part.count);
    charged += static_cast<double>(part.charged);
  }
  const double together =
      static_cast<double>(group.united) * costs.pack + charged * costs.products + listed * costs.lane;
  return group.parts.size() > 1 && together < listed * (costs.pack + costs.alone);
}

bool SharedRefine::decide() {
  bool any = false;
  for (Group& group : groups_) any |= group.pays = pays(group);
  return any;
}

void SharedRefine::refine(ThreadMemory& thread, std::int64_t task) const {
  const Group& group = groups_[static_cast<std::size_t>(task / slices_)];
  if (!group.pays) return;
  const Window keys = slice_of(task);
  Cursors at = cursors_at(group.parts, keys.first);
  Marked marked(group.marks + (keys.first - keys_.first) / 64, keys);
  std::array<std::int32_t, 64> buffers[2]{};
  std::int32_t* panel_keys = buffers[0].data();
  std::int32_t* next_keys = buffers[1].data();
  int count = marked.take(kernels_.panel_keys, panel_keys);
  fetch_keys(tile_.keys, panel_keys, 0, count);
  while (count > 0) {
    // No row asks for a mean, as in refine(): a row's key is packed the same way whoever packs it.
    kernels_.pack(tile_.keys, panel_keys, 0, count, {tile_.options->model, nullptr}, thread.panel);
    const int next_count = marked.take(kernels_.panel_keys, next_keys);
    fetch_keys(tile_.keys, next_keys, 0, next_count);

    const std::int32_t first = panel_keys[0], last = panel_keys[count - 1];
    for (int lane = 0; lane < count; ++lane) thread.lanes[panel_keys[lane] - first] = static_cast<std::uint8_t>(lane);
    std::array<ScreenItem, kScreenRows> items;
    std::array<std::size_t, kScreenRows> rows;
    std::size_t wanting = 0;
    for (std::size_t r = 0; r < group.parts.size(); ++r) {
      const Part& part = group.parts[r];
      if (at[r] == part.count || part.refined.key[at[r]] > last) continue;
      const std::size_t place = wanting * static_cast<std::size_t>(kernels_.panel_keys);
      items[wanting] = {&part.work->dense, thread.screen_lower + place, thread.screen_upper + place};
      rows[wanting++] = r;
    }
    kernels_.screen(items.data(), static_cast<int>(wanting), thread.panel);
    for (std::size_t i = 0; i < wanting; ++i) {
      const Part& part = group.parts[rows[i]];
      const RefinedKeys& refined = part.refined;
      std::int64_t j = at[rows[i]];
      for (; j < part.count && refined.key[j] <= last; ++j) {
        const std::uint8_t lane = thread.lanes[refined.key[j] - first];
        refined.lower[j] = items[i].lower[lane];
        refined.upper[j] = items[i].upper[lane];
      }
      at[rows[i]] = j;
    }
    std::swap(panel_keys, next_keys);
    count = next_count;
  }
}

void SharedRefine::finish() {
  for (const Group& group : groups_) {
    if (!group.pays) continue;
    for (const Part& part : group.parts) {
      part.work->first_keys.refined = true;
      part.work->report.dot_products += static_cast<double>(part.charged) * tile_.layout->heads;
    }
  }
}

}  // namespace dosa::cpu
