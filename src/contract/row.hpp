// One query row with everything the contract says about it resolved: window, forced keys, request, shard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "contract/key_source.hpp"
#include "contract/window.hpp"
#include "dosa/plan.hpp"
#include "score/score.hpp"

namespace dosa {

/// Key indices here are local to the view (a shard's first key is 0); `first_key` turns them into sequence indices.
struct Row {
  std::int64_t row = 0;
  std::int64_t request = 0;
  std::int64_t first_key = 0;
  Window window;            ///< visible keys, whole sequence
  Window head, free, tail;  ///< local: forced first keys, keys that compete by score, forced last keys
  ScoreRow score{};

  [[nodiscard]] std::int64_t forced() const noexcept { return head.size() + tail.size(); }
  /// Visible keys held by this view, local indices.
  [[nodiscard]] Window visible() const noexcept { return {head.first, tail.last}; }
  [[nodiscard]] bool visible(std::int64_t key) const noexcept { return key >= head.first && key < tail.last; }
  /// Slots that competing keys may take.
  [[nodiscard]] std::int64_t free_slots(std::int64_t top_k) const noexcept {
    return std::clamp<std::int64_t>(top_k - forced(), 0, free.size());
  }
};

[[nodiscard]] inline Shard shard_of(const Options& options, std::int64_t keys) noexcept {
  return options.shard.value_or(Shard{0, keys});
}

[[nodiscard]] inline std::int64_t request_of(const Problem& problem, const Shape& shape, std::int64_t t) noexcept {
  if (!shape.paged) return 0;
  if (!problem.row_request.absent()) return *problem.row_request.at(t);
  return t / (shape.rows / shape.requests);
}

[[nodiscard]] inline Row make_row(const Problem& problem, const Shape& shape, const Options& options,
                                  std::int64_t t) noexcept {
  const Shard shard = shard_of(options, shape.keys);
  Row row;
  row.row = t;
  row.request = request_of(problem, shape, t);
  row.first_key = shard.first_key;
  row.window = window_of(*problem.ks.at(t), *problem.ke.at(t), shard.total_keys);
  const Forced forced = forced_of(row.window, options.always_first, options.always_last);
  const auto local = [&](std::int64_t first, std::int64_t last) {
    const Window part = clip({first, last}, shard.first_key, shape.keys);
    return Window{part.first - shard.first_key, part.last - shard.first_key};
  };
  row.head = local(row.window.first, forced.head_last);
  row.free = local(forced.head_last, forced.tail_first);
  row.tail = local(forced.tail_first, row.window.last);
  row.score = {problem.q.at(t),
               problem.q.strides[1],
               problem.weights.at(t),
               problem.weights.strides[1],
               static_cast<std::int32_t>(shape.heads),
               static_cast<std::int32_t>(shape.head_dim)};
  return row;
}

[[nodiscard]] inline KeySource key_source(const Problem& problem, std::int64_t request) noexcept {
  if (const auto* paged = std::get_if<PagedKeys>(&problem.keys)) return KeySource(*paged, request);
  return KeySource(std::get<ContiguousKeys>(problem.keys));
}

}  // namespace dosa
