// T9 and T10 attacked directly: small integer intervals with ties everywhere, every K, against sorting the scores.
#include "select/interval_selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace dosa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Key {
  float lower, score, upper;
  bool selectable;
};

float kth(std::vector<float> values, std::size_t k) {
  std::sort(values.begin(), values.end(), std::greater<>());
  return values[k - 1];
}

std::vector<std::int32_t> best(std::vector<Entry> entries, std::size_t wanted) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.score != b.score ? a.score > b.score : a.index < b.index; });
  entries.resize(std::min(entries.size(), wanted));
  std::vector<std::int32_t> keys;
  for (const Entry& entry : entries) keys.push_back(entry.index);
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(IntervalSelection, EqualsSortingTheScores) {
  std::mt19937 random(9);
  const auto draw = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  std::int64_t certain = 0, open = 0, out = 0, tied_out = 0;
  for (int round = 0; round < 60000; ++round) {
    const auto count = static_cast<std::size_t>(1 + draw(11));
    const int width = draw(3);
    std::vector<Key> keys;
    for (std::size_t j = 0; j < count; ++j) {
      const auto score = static_cast<float>(draw(5));
      Key key{score - static_cast<float>(draw(width)), score, score + static_cast<float>(draw(width)), true};
      if (draw(9) == 0) {
        key.lower = -kInfinity;
        key.selectable = draw(1) == 0;
        if (draw(1) == 0) key.upper = kInfinity;
      }
      keys.push_back(key);
    }
    // Candidates come in any order of their indices.
    std::vector<std::int32_t> order(count);
    for (std::size_t j = 0; j < count; ++j) order[j] = static_cast<std::int32_t>(j);
    std::shuffle(order.begin(), order.end(), random);

    std::vector<Entry> selectable;
    for (std::size_t j = 0; j < count; ++j)
      if (keys[j].selectable) selectable.push_back({keys[j].score, static_cast<std::int32_t>(j)});
    for (std::size_t wanted = 1; wanted <= count + 1; ++wanted) {
      std::vector<float> lower, upper;
      for (const std::int32_t key : order) {
        lower.push_back(keys[static_cast<std::size_t>(key)].lower);
        upper.push_back(keys[static_cast<std::size_t>(key)].upper);
      }
      std::vector<std::int32_t> list = order;
      std::vector<Entry> entries(count);
      const bool more = count > wanted;
      const float below = more ? kth(lower, wanted) : -kInfinity;
      const Decided decided =
          decide({lower.data(), upper.data(), list.data(), static_cast<std::int64_t>(count)},
                 static_cast<std::int64_t>(wanted), more ? kth(upper, wanted + 1) : -kInfinity, below, entries.data());
      ASSERT_LE(decided.certain, static_cast<std::int64_t>(wanted));
      std::vector<Entry> scored;
      for (std::int64_t j = 0; j < decided.open; ++j) {
        const std::int32_t key = list[static_cast<std::size_t>(j)];
        if (keys[static_cast<std::size_t>(key)].selectable)
          scored.push_back({keys[static_cast<std::size_t>(key)].score, key});
      }
      std::vector<std::int32_t> found = best(scored, wanted - static_cast<std::size_t>(decided.certain));
      for (std::int64_t j = 0; j < decided.certain; ++j) found.push_back(entries[static_cast<std::size_t>(j)].index);
      std::sort(found.begin(), found.end());
      ASSERT_EQ(found, best(selectable, wanted)) << "round " << round << ", K = " << wanted << " of " << count;

      certain += decided.certain;
      open += decided.open;
      out += static_cast<std::int64_t>(count) - decided.certain - decided.open;
      std::int64_t above = 0;
      for (const float bound : upper) above += bound >= below ? 1 : 0;
      tied_out += above - decided.certain - decided.open;
    }
  }
  // Every branch was taken, T9 b among them.
  EXPECT_GT(certain, 1000);
  EXPECT_GT(open, 1000);
  EXPECT_GT(out, 1000);
  EXPECT_GT(tied_out, 1000);
}

}  // namespace
}  // namespace dosa
