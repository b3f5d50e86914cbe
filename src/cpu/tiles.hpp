// Rows in an order in which neighbours share keys, cut into tiles whose windows overlap without gaps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "contract/row.hpp"

namespace dosa::cpu {

/// Rows order[first..last) of one request; every key of `keys` is visible to at least one of them, so packing the whole
/// range reads nothing that no row may see.
struct Tile {
  std::int64_t first = 0, last = 0;
  Window keys;  ///< local indices: union of the rows' competing keys
};

/// Sorts row numbers by request, first and last competing key. `make` gives a Row for a row number.
template <class MakeRow>
void sort_rows(std::span<std::int32_t> order, const MakeRow& make) {
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const Row x = make(a), y = make(b);
    if (x.request != y.request) return x.request < y.request;
    if (x.free.first != y.free.first) return x.free.first < y.free.first;
    if (x.free.last != y.free.last) return x.free.last < y.free.last;
    return a < b;
  });
}

/// The tile that starts at order[first]: at most `most` rows.
template <class MakeRow>
[[nodiscard]] Tile next_tile(std::span<const std::int32_t> order, std::int64_t first, int most, const MakeRow& make) {
  const Row head = make(order[static_cast<std::size_t>(first)]);
  Tile tile{first, first + 1, head.free};
  const auto rows = static_cast<std::int64_t>(order.size());
  while (tile.last < rows && tile.last - tile.first < most) {
    const Row row = make(order[static_cast<std::size_t>(tile.last)]);
    if (row.request != head.request || row.free.first > tile.keys.last) break;
    tile.keys.last = std::max(tile.keys.last, row.free.last);
    ++tile.last;
  }
  return tile;
}

}  // namespace dosa::cpu
