// The total order is one: for any two different keys exactly one comes first, and chains do not loop.
#include "contract/total_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace dosa {
namespace {

std::vector<Entry> hostile_entries() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<Entry> entries;
  std::int32_t index = 0;
  for (int copy = 0; copy < 3; ++copy) {
    for (const float score : {0.0F, -0.0F, inf, -inf, 1.0F, -1.0F, std::numeric_limits<float>::denorm_min(),
                              -std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::lowest(), 65504.0F, 0x1p-24F}) {
      entries.push_back({score, index++});
    }
  }
  return entries;
}

TEST(TotalOrder, IsStrictAndTotal) {
  const auto entries = hostile_entries();
  for (const Entry& a : entries) {
    EXPECT_FALSE(before(a, a));
    for (const Entry& b : entries) {
      EXPECT_EQ(before(a, b) != before(b, a), a.index != b.index) << a.score << " " << b.score;
      for (const Entry& c : entries) {
        EXPECT_TRUE(before(a, c) || !before(a, b) || !before(b, c)) << a.score << " " << b.score << " " << c.score;
      }
    }
  }
}

TEST(TotalOrder, EqualScoresGoByIndexAndZerosAreEqual) {
  EXPECT_TRUE(before({0.0F, 3}, {-0.0F, 4}));
  EXPECT_TRUE(before({-0.0F, 3}, {0.0F, 4}));
  EXPECT_FALSE(before({0.0F, 4}, {-0.0F, 3}));
  static_assert(before({2.0F, 9}, {1.0F, 0}));
  EXPECT_TRUE(before({std::numeric_limits<float>::infinity(), 9}, {std::numeric_limits<float>::max(), 0}));
  EXPECT_TRUE(before({std::numeric_limits<float>::lowest(), 9}, {-std::numeric_limits<float>::infinity(), 0}));
  EXPECT_TRUE(before({std::numeric_limits<float>::denorm_min(), 9}, {0.0F, 0}));
}

TEST(TotalOrder, NanAloneIsNotSelectable) {
  for (const Entry& entry : hostile_entries()) EXPECT_TRUE(selectable(entry.score));
  EXPECT_FALSE(selectable(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(selectable(-std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(selectable(std::numeric_limits<float>::signaling_NaN()));
}

}  // namespace
}  // namespace dosa
