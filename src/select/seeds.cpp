#include "select/seeds.hpp"

#include <algorithm>
#include <functional>

namespace dosa {

std::int64_t elect_seeds(std::span<std::int32_t> votes, std::int64_t room, std::int32_t* seeds) noexcept {
  // One row's winners are sorted, distinct and all as good.
  const bool ascending = std::adjacent_find(votes.begin(), votes.end(), std::greater_equal<>()) == votes.end();
  if (ascending && static_cast<std::int64_t>(votes.size()) <= room) {
    std::copy(votes.begin(), votes.end(), seeds);
    return static_cast<std::int64_t>(votes.size());
  }
  std::sort(votes.begin(), votes.end());
  std::int64_t most = 0;
  const auto for_each_key = [&](const auto& visit) {
    for (auto first = votes.begin(); first != votes.end();) {
      const auto last = std::find_if(first, votes.end(), [&](std::int32_t key) { return key != *first; });
      visit(*first, last - first);
      first = last;
    }
  };
  for_each_key([&](std::int32_t, std::int64_t count) { most = std::max(most, count); });
  std::int64_t found = 0;
  for (std::int64_t wanted = most; wanted > 0 && found < room; --wanted)
    for_each_key([&](std::int32_t key, std::int64_t count) {
      if (count == wanted && found < room) seeds[found++] = key;
    });
  std::sort(seeds, seeds + found);
  return found;
}

}  // namespace dosa
