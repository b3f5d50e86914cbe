// The fuzz bodies without a fuzzer: every seed, every kept input (tests/fuzz/corpus), and a fixed stream of mutations.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz/bodies.hpp"
#include "support/parity.hpp"
#include "workloads/random.hpp"

namespace dosa::fuzz {
namespace {

class Replay : public testing::TestWithParam<const Target*> {};

TEST_P(Replay, Seeds) {
  const std::vector<Bytes> seeds = GetParam()->seeds();
  EXPECT_GE(seeds.size(), 20U);
  for (std::size_t i = 0; i < seeds.size(); ++i) EXPECT_EQ(GetParam()->run(seeds[i]), std::nullopt) << "seed " << i;
}

TEST_P(Replay, KeptInputs) {
  const auto folder = std::filesystem::path(DOSA_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / GetParam()->name;
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder;
  int inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    const Bytes bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(GetParam()->run(bytes), std::nullopt) << file.path();
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << folder;
}

/// Changed, cut, lengthened and spliced seeds: what a fuzzer does first, the same on every machine.
TEST_P(Replay, FixedStream) {
  const std::vector<Bytes> seeds = GetParam()->seeds();
  workloads::Random random(2026 + test::test_seed());
  const auto any = [&](std::size_t count) {
    return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));
  };
  const int rounds = (test::full_sizes() ? 40 : 1) * (GetParam() == &parity_target() ? 400 : 4000);
  for (int round = 0; round < rounds; ++round) {
    Bytes bytes = seeds[any(seeds.size())];
    for (std::int64_t change = random.below(12) + 1; change > 0; --change) {
      const std::size_t at = any(bytes.size() + 1);
      switch (random.below(6)) {
        case 0:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(random.bits()));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2: {
          const Bytes& other = seeds[any(seeds.size())];
          bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(any(other.size())), other.end());
          break;
        }
        default:
          if (at < bytes.size())
            bytes[at] =
                static_cast<std::uint8_t>(random.chance(0.3) ? bytes[at] ^ 1U << random.below(8) : random.bits());
      }
    }
    if (bytes.size() > 8192) bytes.resize(8192);
    ASSERT_EQ(GetParam()->run(bytes), std::nullopt) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, testing::Values(&trace_target(), &parity_target(), &merge_target()),
                         [](const auto& parameters) { return std::string(parameters.param->name); });

}  // namespace
}  // namespace dosa::fuzz
