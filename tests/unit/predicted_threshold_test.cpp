// The predicted threshold: what it counts, when it refuses, and how often it is right on drawn rows.
#include "select/predicted_threshold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cpu/dispatch.hpp"

namespace dosa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float predicted(const std::vector<Stratum>& sample, double wanted) {
  return predicted_threshold(*cpu::choose(Isa::automatic).kernels, sample, wanted);
}

TEST(PredictedThreshold, NeedsASampleThatIsLargeEnough) {
  EXPECT_EQ(predicted({}, 1), -kInfinity);
  const std::vector<float> nine(9, 1.0F);
  EXPECT_EQ(predicted({{nine, 1.0F}}, 1), -kInfinity);  // 9 - 3 sqrt(9) = 0
  const std::vector<float> ten(10, 1.0F);
  EXPECT_EQ(predicted({{ten, 1.0F}}, 0.5), 1.0F);
  EXPECT_EQ(predicted({{ten, 1.0F}, {{}, 100.0F}}, 0.5), 1.0F);
}

TEST(PredictedThreshold, IsTheFirstScoreWhoseCountIsSure) {
  for (const int wanted : {1, 5, 40}) {
    std::vector<float> sample;
    for (int i = 0; i < 200; ++i) sample.push_back(static_cast<float>((i * 77) % 200) - 100.0F);
    int rank = 1;
    while (rank - 3 * std::sqrt(rank) < wanted) ++rank;
    EXPECT_EQ(predicted({{sample, 1.0F}}, wanted), static_cast<float>(100 - rank)) << wanted;
  }
}

TEST(PredictedThreshold, CountsKeysThatEachSampleStandsFor) {
  // Sixteen exact counts: weight 4 and rank r count 4 r - 12 sqrt(r).
  std::vector<float> sample;
  for (int i = 0; i < 64; ++i) sample.push_back(static_cast<float>(i));
  int rank = 1;
  while (4 * rank - 12 * std::sqrt(rank) < 60) ++rank;
  EXPECT_EQ(predicted({{sample, 4.0F}}, 60), static_cast<float>(64 - rank));
}

/// Rows of 64K normal scores, 2048 wanted, 128 of 2048 seeds (70 % of them winners) and 256 of the others.
TEST(PredictedThreshold, IsSeldomTooHighAndNotFarTooLow) {
  constexpr int kKeys = 65536, kWanted = 2048, kRounds = 300;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int too_high = 0;
  std::vector<double> kept;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> scores(kKeys);
    for (float& score : scores) score = normal(random);
    std::vector<float> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + kWanted - 1, sorted.end(), std::greater<>());
    const float threshold = sorted[kWanted - 1];
    std::vector<float> seeds, others;
    for (const float score : scores) {
      const bool winner = score >= threshold;
      const bool seed = winner ? random() % 10 < 7 : score > threshold - 0.5F && random() % 3 == 0;
      (seed && seeds.size() < kWanted ? seeds : others).push_back(score);
    }
    std::shuffle(seeds.begin(), seeds.end(), random);
    std::shuffle(others.begin(), others.end(), random);
    const auto seed_weight = static_cast<float>(seeds.size()) / 128, weight = static_cast<float>(others.size()) / 256;
    const float found =
        predicted({{std::span(seeds).first(128), seed_weight}, {std::span(others).first(256), weight}}, kWanted);
    too_high += found > threshold ? 1 : 0;
    kept.push_back(
        static_cast<double>(std::count_if(scores.begin(), scores.end(), [&](float s) { return s >= found; })));
  }
  EXPECT_LE(too_high, kRounds / 50);
  std::nth_element(kept.begin(), kept.begin() + kRounds / 2, kept.end());
  EXPECT_LT(kept[kRounds / 2], 4.0 * kWanted);
}

}  // namespace
}  // namespace dosa
