// Windows, forced keys and clipping against the definition, key by key, over every small case.
#include "contract/window.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace dosa {
namespace {

constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min(),
                       kHigh = std::numeric_limits<std::int32_t>::max();

bool visible(std::int64_t i, std::int64_t ks, std::int64_t ke, std::int64_t n) {
  return ke > ks && i >= 0 && i < n && i >= ks && i < ke;
}

TEST(Window, HoldsExactlyTheVisibleKeys) {
  for (const std::int32_t ks : {kLow, -3, -1, 0, 1, 4, 6, 7, 8, kHigh}) {
    for (const std::int32_t ke : {kLow, -3, -1, 0, 1, 4, 6, 7, 8, kHigh}) {
      for (const std::int64_t n : {0, 1, 6, 7}) {
        const Window window = window_of(ks, ke, n);
        EXPECT_GE(window.size(), 0);
        EXPECT_GE(window.first, 0);
        std::int64_t count = 0;
        for (std::int64_t i = -5; i < 12; ++i) {
          const bool inside = i >= window.first && i < window.last;
          EXPECT_EQ(inside, visible(i, ks, ke, n)) << ks << ".." << ke << " of " << n << " key " << i;
          count += inside;
        }
        EXPECT_EQ(window.size(), count);
      }
    }
  }
}

TEST(Window, ReachesTheLargestIndex) {
  const std::int64_t n = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(window_of(kLow, kHigh, n), (Window{0, n}));
  EXPECT_EQ(window_of(kHigh - 1, kHigh, n), (Window{n - 1, n}));
}

TEST(Forced, AreTheFirstAndLastVisibleKeysAndCountOnce) {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (const Window& window : {Window{0, 0}, Window{5, 5}, Window{0, 1}, Window{3, 10}, Window{2, 4}}) {
    for (const std::int64_t first :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, std::int64_t{8}, huge}) {
      for (const std::int64_t last : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{7}, huge}) {
        const Forced forced = forced_of(window, first, last);
        EXPECT_LE(forced.head_last, forced.tail_first);
        for (std::int64_t i = -1; i < 13; ++i) {
          const bool inside = i >= window.first && i < window.last;
          const bool wanted = inside && (i - window.first < first || window.last - i <= last);
          EXPECT_EQ(forced.contains(i), wanted)
              << window.first << ".." << window.last << " " << first << " " << last << " key " << i;
        }
      }
    }
  }
}

TEST(Clip, IsTheIntersectionWithTheShard) {
  for (std::int64_t first = 0; first < 8; ++first) {
    for (std::int64_t last = first; last < 9; ++last) {
      for (std::int64_t shard = 0; shard < 8; ++shard) {
        for (std::int64_t keys = 0; keys < 6; ++keys) {
          const Window part = clip({first, last}, shard, keys);
          EXPECT_GE(part.size(), 0);
          for (std::int64_t i = 0; i < 16; ++i) {
            const bool wanted = i >= first && i < last && i >= shard && i < shard + keys;
            EXPECT_EQ(i >= part.first && i < part.last, wanted);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dosa
