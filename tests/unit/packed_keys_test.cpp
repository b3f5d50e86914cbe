// Panels that the tiles of a call share: packed once, whole when they are handed out, and only where they are kept.
#include "cpu/packed_keys.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "support/emulated_tiles.hpp"
#include "support/plain_narrow.hpp"

namespace dosa::cpu {
namespace {

constexpr int kDim = 64, kPanels = 40;
constexpr ScoreModel kModel_ = ScoreModel::sm90;

struct Keys {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  explicit Keys(std::int64_t count)
      : codes(static_cast<std::size_t>(count * kDim)), scales(static_cast<std::size_t>(count)) {
    std::mt19937_64 random(3);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random() & 0xf7U);
    for (float& scale : scales) scale = static_cast<float>(1 + random() % 100);
  }
  [[nodiscard]] KeySource source() const {
    ContiguousKeys keys;
    const auto count = static_cast<std::int64_t>(scales.size());
    keys.codes = TensorView<const std::uint8_t, 2>::contiguous(codes.data(), {count, kDim});
    keys.scales = TensorView<const float, 1>::contiguous(scales.data(), {count});
    return KeySource(keys);
  }
};

/// A table whose packs are counted, and during which another function may be called.
const Kernels* inner = nullptr;
std::atomic<int> packs{0};
void (*during)() = nullptr;
void counting_pack(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
                   const PackSpec& spec, Panel& panel) {
  ++packs;
  if (during != nullptr) during();
  inner->pack(keys, index, first, count, spec, panel);
}

class PackedKeysTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    plain_ = test::with_plain_narrow(*portable_kernels());
    inner = GetParam() ? test::emulated_tiles() : &plain_;
    if (inner == nullptr) GTEST_SKIP() << test::EmulatedTiles::kWhyNot;
    table_ = *inner;
    table_.pack = counting_pack;
    packs = 0;
    during = nullptr;
    layout_.kernels = &table_;
    layout_.head_dim = kDim;
    layout_.model = kModel_;
    layout_.packed_panels = kPanels;
    Arena measure;
    (void)PackedKeys(measure, layout_);
    memory_.assign(measure.wanted_bytes(), std::byte{0xee});
    Arena arena(memory_.data());
    packed_ = PackedKeys(arena, layout_);
  }
  void TearDown() override { during = nullptr; }

  [[nodiscard]] std::int64_t panel_keys() const { return table_.panel_keys; }

  /// What screens read of a panel.
  [[nodiscard]] std::vector<float> numbers(const Panel& panel) const {
    std::mt19937_64 random(5);
    std::vector<std::int8_t> rows(20 * kDim);
    for (std::int8_t& x : rows) x = static_cast<std::int8_t>(static_cast<int>(random() % 129) - 64);
    const std::vector<float> factors(19, 0.5F);
    FormSpec spec;
    spec.head_dim = kDim;
    spec.relu_rows = 18;
    spec.aggregate_rows = 1;
    spec.narrow = rows.data();
    spec.narrow_factor = factors.data();
    spec.allow_residual = 1;
    for (int f = 0; f < feature_count(kModel_, kDim); ++f) spec.allow[f] = 0.5F;
    std::vector<std::byte> memory(table_.form_bytes(19, kDim) + 64);
    auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    const Form form = table_.make_form(spec, kModel_, aligned);
    std::vector<float> found(static_cast<std::size_t>(panel_keys()));
    table_.upper(form, panel, found.data());
    found.insert(found.end(), panel.scale, panel.scale + panel.count);
    return found;
  }
  [[nodiscard]] std::vector<float> fresh(const KeySource& keys, std::int64_t first) const {
    std::vector<std::byte> memory(table_.narrow_panel_bytes(kDim, kModel_) + 64);
    auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    Panel panel = table_.make_narrow_panel(aligned, kDim, kModel_);
    inner->pack(keys, nullptr, first, table_.panel_keys, {kModel_, nullptr, false, true}, panel);
    return numbers(panel);
  }

  Kernels plain_{}, table_{};
  Layout layout_;
  std::vector<std::byte> memory_;
  PackedKeys packed_;
};

INSTANTIATE_TEST_SUITE_P(Tables, PackedKeysTest, testing::Bool(),
                         [](const auto& instance) { return std::string(instance.param ? "tiles" : "plain"); });

TEST_P(PackedKeysTest, EveryPanelIsPackedOnceAndEqualsAFreshOne) {
  constexpr std::int64_t kOrigin = 17;
  const Keys keys(kOrigin + kPanels * panel_keys());
  packed_.start(kOrigin);
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t p = kPanels - 1; p >= 0; --p) {
      Panel panel;
      ASSERT_TRUE(packed_.find(keys.source(), kOrigin + p * panel_keys(), table_.panel_keys, panel));
      EXPECT_EQ(panel.count, panel_keys());
      EXPECT_EQ(numbers(panel), fresh(keys.source(), kOrigin + p * panel_keys())) << p;
    }
    EXPECT_EQ(packs, kPanels);
  }
  // Another call's keys: nothing of the last call is left.
  packed_.start(0);
  Panel panel;
  ASSERT_TRUE(packed_.find(keys.source(), panel_keys(), table_.panel_keys, panel));
  EXPECT_EQ(numbers(panel), fresh(keys.source(), panel_keys()));
  EXPECT_EQ(packs, kPanels + 1);
}

TEST_P(PackedKeysTest, WhatIsNotKeptIsRefused) {
  constexpr std::int64_t kOrigin = 1000;
  const Keys keys(kOrigin + (kPanels + 2) * panel_keys());
  packed_.start(kOrigin);
  Panel panel;
  for (const std::int64_t first : {kOrigin - 1, kOrigin - panel_keys(), std::int64_t{0}, kOrigin + 1,
                                   kOrigin + panel_keys() - 1, kOrigin + kPanels * panel_keys()})
    EXPECT_FALSE(packed_.find(keys.source(), first, table_.panel_keys, panel)) << first;
  EXPECT_EQ(packs, 0);
  for (const int count : {1, table_.panel_keys - 1})
    EXPECT_FALSE(packed_.find(keys.source(), kOrigin, count, panel)) << count;
  EXPECT_TRUE(packed_.find(keys.source(), kOrigin + (kPanels - 1) * panel_keys(), table_.panel_keys, panel));

  layout_.packed_panels = 0;
  Arena none;
  PackedKeys empty(none, layout_);
  EXPECT_EQ(none.used(), 0U);
  empty.start(kOrigin);
  EXPECT_FALSE(empty.find(keys.source(), kOrigin, table_.panel_keys, panel));
}

TEST_P(PackedKeysTest, APanelThatIsOnlyBegunIsRefused) {
  static PackedKeys* packed = nullptr;
  static int whole = 0;
  static const Keys* all = nullptr;
  const Keys keys(2 * panel_keys());
  packed = &packed_;
  all = &keys;
  whole = table_.panel_keys;
  packed_.start(0);
  during = [] {
    Panel begun;
    EXPECT_FALSE(packed->find(all->source(), 0, whole, begun));
  };
  Panel panel;
  EXPECT_TRUE(packed_.find(keys.source(), 0, table_.panel_keys, panel));
  during = nullptr;
  EXPECT_TRUE(packed_.find(keys.source(), 0, table_.panel_keys, panel));
  EXPECT_EQ(packs, 1);
}

TEST_P(PackedKeysTest, ThreadsFindWholePanels) {
  constexpr std::int64_t kOrigin = 5;
  constexpr int kThreads = 4;
  const Keys keys(kOrigin + kPanels * panel_keys());
  std::vector<std::vector<float>> want;
  for (std::int64_t p = 0; p < kPanels; ++p) want.push_back(fresh(keys.source(), kOrigin + p * panel_keys()));
  for (int round = 0; round < 5; ++round) {
    packed_.start(kOrigin);
    packs = 0;
    std::atomic<int> wrong{0}, found{0}, waiting{kThreads};
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        for (int i = 0; i < 3 * kPanels; ++i) {
          // All at the same panel first, then each on a way of its own.
          const std::int64_t p = i < kPanels ? i : (i * (2 * t + 1) + t) % kPanels;
          Panel panel;
          if (!packed_.find(keys.source(), kOrigin + p * panel_keys(), table_.panel_keys, panel)) continue;
          ++found;
          wrong += numbers(panel) == want[static_cast<std::size_t>(p)] ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(packs, kPanels);
    EXPECT_GE(found, 2 * kPanels);
  }
}

}  // namespace
}  // namespace dosa::cpu
