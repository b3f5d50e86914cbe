// The K-th largest against sorting: every rank of small inputs, drawn ranks of large ones, ties, infinities, both
// zeros.
#include "select/kth_largest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cpu/dispatch.hpp"

namespace dosa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> draw(int kind, std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (kind) {
      case 0:
        values[i] = normal(random);
        break;
      case 1:
        values[i] = 1.0F;
        break;
      case 2:
        values[i] = static_cast<float>(random() % 3);
        break;
      case 3:
        values[i] = random() % 2 == 0 ? 0.0F : -0.0F;
        break;
      case 4:
        values[i] = random() % 3 == 0 ? kInfinity : -kInfinity;
        break;
      case 5:
        values[i] = std::ldexp(normal(random), static_cast<int>(random() % 250) - 125);
        break;
      case 6:
        values[i] = static_cast<float>(i);
        break;
      case 7:
        values[i] = -static_cast<float>(i) * 0x1p-149F;
        break;
      case 8:
        values[i] = i % 7 == 0 ? std::numeric_limits<float>::max() : -kInfinity;
        break;
      default:
        values[i] = i < 300 ? kInfinity : normal(random) * 0x1p-140F;
        break;
    }
  }
  return values;
}

TEST(KthLargest, EqualsSorting) {
  std::mt19937 random(4);
  const auto scratch = std::make_unique<KthScratch>();
  std::int64_t checked = 0;
  for (const IsaInfo& isa : cpu::available_isas()) {
    if (!isa.available) continue;
    const cpu::Kernels& kernels = *cpu::choose(isa.isa).kernels;
    for (int kind = 0; kind < 10; ++kind) {
      for (const std::int64_t count : {1, 2, 5, 255, 256, 257, 400, 2047, 2048, 2049, 5000, 70001}) {
        const std::vector<float> values = draw(kind, count, random);
        std::vector<float> sorted = values;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        std::vector<std::int64_t> ranks{1, 2, count / 2, count - 1, count};
        for (int r = 0; r < 6; ++r)
          ranks.push_back(1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(count)));
        for (const std::int64_t rank : ranks) {
          if (rank < 1 || rank > count) continue;
          ASSERT_EQ(kth_largest(kernels, values, rank, *scratch), sorted[static_cast<std::size_t>(rank - 1)])
              << name(isa.isa) << ", kind " << kind << ", " << rank << " of " << count;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

}  // namespace
}  // namespace dosa
