// The memory promise of issue 7: at most 64 MiB plus 32 bytes a key plus (4 KiB + 32 K bytes) a row in flight.
#include <gtest/gtest.h>

#include "cpu/dispatch.hpp"
#include "cpu/layout.hpp"
#include "dosa/plan.hpp"
#include "support/plain_narrow.hpp"

namespace dosa {
namespace {

void expect_within_budget(const Shape& shape, const Options& options) {
  const Plan decided = plan(shape, options);
  const Options& used = decided.options();
  const cpu::Layout layout = cpu::make_layout(*cpu::choose(used.isa).kernels, shape, used, used.threads);
  const std::int64_t in_flight = std::int64_t{layout.slots} * layout.tile_rows;
  const std::int64_t promised =
      (64LL << 20) + 32 * shape.keys + in_flight * (4096 + 32 * std::min(options.top_k, shape.keys));
  EXPECT_LE(static_cast<std::int64_t>(decided.workspace_bytes()), promised)
      << name(used.isa) << ": rows " << shape.rows << " keys " << shape.keys << " heads " << shape.heads << " D "
      << shape.head_dim << " K " << options.top_k << " threads " << options.threads << " in flight " << in_flight;
  EXPECT_GE(used.threads, 1);
  EXPECT_LE(used.threads, options.threads);
  EXPECT_EQ(layout.threads, used.threads) << "a run cuts its workspace for the threads of the plan";
}

TEST(Workspace, StaysUnderItsBudget) {
  std::int64_t checked = 0;
  for (const IsaInfo& isa : cpu::available_isas()) {
    if (!isa.available) continue;
    for (const std::int64_t keys : {0LL, 1LL, 4096LL, 65536LL, 131072LL, 1LL << 20, 4LL << 20, 32LL << 20})
      for (const std::int64_t rows : {1LL, 7LL, 256LL, 16384LL, 1LL << 20})
        for (const std::int64_t top_k : {1LL, 512LL, 2048LL, 4096LL})
          for (const int threads : {1, 2, 7, 64, 256, 4096})
            for (const auto& [heads, head_dim] : {std::pair{32LL, 128LL}, {64LL, 128LL}, {8LL, 64LL}, {128LL, 256LL}})
              for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
                Options options;
                options.top_k = top_k;
                options.threads = threads;
                options.isa = isa.isa;
                options.model = model;
                const Shape shape{.rows = rows, .heads = heads, .head_dim = head_dim, .keys = keys};
                expect_within_budget(shape, options);
                ++checked;
              }
  }
  EXPECT_GT(checked, 0);
}

/// Rows in flight are a quotient: how much of the budget its remainder leaves differs from size to size.
TEST(Workspace, StaysUnderItsBudgetAtEverySize) {
  std::int64_t checked = 0;
  for (std::int64_t keys = 1000; keys < 8000000; keys += keys / 77 + 1)
    for (const std::int64_t heads : {32, 64, 128})
      for (const int threads : {1, 2, 64})
        for (const std::int64_t top_k : {1, 2048}) {
          Options options;
          options.top_k = top_k;
          options.threads = threads;
          expect_within_budget({.rows = 100000, .heads = heads, .head_dim = 128, .keys = keys}, options);
          ++checked;
        }
  EXPECT_GT(checked, 5000);
}

TEST(Workspace, TakesNoMoreThreadsThanMemoryHolds) {
  Options options;
  options.top_k = 2048;
  options.threads = 4096;
  const Shape shape{.rows = 4096, .heads = 128, .head_dim = 128, .keys = 65536};
  const Plan decided = plan(shape, options);
  EXPECT_LT(decided.options().threads, 4096);
  EXPECT_NE(decided.why().find("memory for no more"), std::string::npos) << decided.why();
  options.threads = 16;
  const Plan few = plan(shape, options);
  EXPECT_EQ(few.options().threads, 16);
  EXPECT_EQ(few.why().find("memory for no more"), std::string::npos) << few.why();
}

TEST(Workspace, DoesNotGrowWithTheRows) {
  Options options;
  options.top_k = 2048;
  options.threads = 2;
  const Shape some{.rows = 16384, .heads = 32, .head_dim = 128, .keys = 65536};
  Shape more = some;
  more.rows = 1 << 24;
  EXPECT_EQ(plan(some, options).workspace_bytes(), plan(more, options).workspace_bytes());
}

/// Where lists for all keys would leave few rows to share a pass, rows have shorter ones; one could still have all.
TEST(Workspace, ManyKeysLeaveRowsShorterLists) {
  Options options;
  options.top_k = 2048;
  int shortened = 0;
  for (const int threads : {1, 2, 16})
    for (std::int64_t keys = 1000; keys < 40000000; keys += keys / 7 + 1) {
      const cpu::Kernels& kernels = *cpu::portable_kernels();
      const Shape shape{.rows = 4096, .heads = 32, .head_dim = 128, .keys = keys};
      const cpu::Layout layout = cpu::make_layout(kernels, shape, options, threads);
      EXPECT_GE(layout.pool, keys + cpu::kListSlack) << keys;
      EXPECT_GE(layout.pool, layout.tile_rows * (layout.room + cpu::kListSlack)) << keys;
      EXPECT_GE(layout.most_slices(), 1) << keys;
      if (keys <= 65536) {
        EXPECT_EQ(layout.room, keys);
      }
      if (keys <= 1 << 20 || threads <= 2) {
        EXPECT_EQ(layout.tile_rows, kernels.tile_rows) << keys << " " << threads;
      }
      shortened += layout.room < keys ? 1 : 0;
      if (layout.room == keys) continue;
      EXPECT_EQ(layout.slots, 1);
      EXPECT_GE(layout.most_slices(), threads) << keys;
      EXPECT_GE(layout.room / layout.most_slices(), 2 * options.top_k) << keys << ": all winners may lie in one slice";
    }
  EXPECT_GT(shortened, 30);
}

/// Narrow forms under the name of the tiles, on any machine.
class WorkspaceOfNarrowForms : public testing::Test {
 protected:
  WorkspaceOfNarrowForms() { cpu::tiles_stand_in = &table_; }
  ~WorkspaceOfNarrowForms() override { cpu::tiles_stand_in = nullptr; }
  WorkspaceOfNarrowForms(const WorkspaceOfNarrowForms&) = delete;
  WorkspaceOfNarrowForms& operator=(const WorkspaceOfNarrowForms&) = delete;

  [[nodiscard]] std::int64_t packed_panels(const Shape& shape, const Options& options) const {
    return cpu::make_layout(table_, shape, options, options.threads).packed_panels;
  }
  static Options usual() {
    Options options;
    options.top_k = 2048;
    options.threads = 2;
    options.isa = Isa::amx;
    return options;
  }

 private:
  cpu::Kernels table_ = test::with_plain_narrow(*cpu::portable_kernels());
};

TEST_F(WorkspaceOfNarrowForms, StaysUnderItsBudgetWithPackedKeys) {
  int kept = 0, not_kept = 0;
  for (std::int64_t keys = 500; keys < 8000000; keys += keys / 9 + 1)
    for (const std::int64_t rows : {1LL, 33LL, 100000LL})
      for (const auto& [heads, head_dim] : {std::pair{32LL, 128LL}, {8LL, 64LL}, {128LL, 256LL}})
        for (const int threads : {1, 2, 64})
          for (const std::int64_t top_k : {1, 2048})
            for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
              Options options = usual();
              options.top_k = top_k;
              options.threads = threads;
              options.model = model;
              const Shape shape{.rows = rows, .heads = heads, .head_dim = head_dim, .keys = keys};
              expect_within_budget(shape, options);
              (packed_panels(shape, options) > 0 ? kept : not_kept) += 1;
            }
  EXPECT_GT(kept, 300);
  EXPECT_GT(not_kept, 300);
}

TEST_F(WorkspaceOfNarrowForms, PackedKeysAreKeptWhereTilesShareThem) {
  const Shape shape{.rows = 4096, .heads = 32, .head_dim = 128, .keys = 65537};
  const auto panel_keys = std::int64_t{cpu::portable_kernels()->panel_keys};
  EXPECT_EQ(packed_panels(shape, usual()), (shape.keys + panel_keys - 1) / panel_keys);
  Shape several = shape;
  several.requests = 2;
  EXPECT_EQ(packed_panels(several, usual()), 0) << "each request would need its own";
  Shape one_tile = shape;
  one_tile.rows = 32;
  EXPECT_EQ(packed_panels(one_tile, usual()), 0);
  Options dense = usual();
  dense.path = Path::dense;
  EXPECT_EQ(packed_panels(shape, dense), packed_panels(shape, usual()));
  Options wide = usual();
  wide.ablation.narrow = false;
  EXPECT_EQ(packed_panels(shape, wide), 0);
  Shape quarter = shape;
  quarter.keys = 1 << 18;
  EXPECT_GT(packed_panels(quarter, usual()), 0) << "shorter lists make room for them";
  Shape long_one = shape;
  long_one.keys = 32 << 20;
  EXPECT_EQ(packed_panels(long_one, usual()), 0) << "no memory";
}

}  // namespace
}  // namespace dosa
