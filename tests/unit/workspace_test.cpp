// The memory promise of issue 7: at most 64 MiB plus 32 bytes a key plus (4 KiB + 32 K bytes) a row in flight.
#include <gtest/gtest.h>

#include "cpu/dispatch.hpp"
#include "cpu/layout.hpp"
#include "dosa/plan.hpp"

namespace dosa {
namespace {

struct Case {
  std::int64_t rows, keys, heads, head_dim, top_k;
  int threads;
};

TEST(Workspace, StaysUnderItsBudget) {
  std::int64_t checked = 0;
  for (const IsaInfo& isa : cpu::available_isas()) {
    if (!isa.available) continue;
    for (const std::int64_t keys : {0LL, 1LL, 4096LL, 65536LL, 131072LL, 1LL << 20, 4LL << 20, 32LL << 20})
      for (const std::int64_t rows : {1LL, 7LL, 256LL, 16384LL, 1LL << 20})
        for (const std::int64_t top_k : {1LL, 512LL, 2048LL, 4096LL})
          for (const int threads : {1, 2, 7, 64})
            for (const auto& [heads, head_dim] : {std::pair{32LL, 128LL}, {64LL, 128LL}, {8LL, 64LL}})
              for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
                Options options;
                options.top_k = top_k;
                options.threads = threads;
                options.isa = isa.isa;
                options.model = model;
                const Shape shape{.rows = rows, .heads = heads, .head_dim = head_dim, .keys = keys};
                const Plan decided = plan(shape, options);
                const cpu::Layout layout =
                    cpu::make_layout(*cpu::choose(isa.isa).kernels, shape, decided.options(), threads);
                const std::int64_t in_flight = std::int64_t{layout.slots} * layout.tile_rows;
                const std::int64_t promised =
                    (64LL << 20) + 32 * keys + in_flight * (4096 + 32 * std::min(top_k, keys));
                EXPECT_LE(static_cast<std::int64_t>(decided.workspace_bytes()), promised)
                    << isa.why << ": rows " << rows << " keys " << keys << " heads " << heads << " D " << head_dim
                    << " K " << top_k << " threads " << threads << " in flight " << in_flight;
                ++checked;
              }
  }
  EXPECT_GT(checked, 0);
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

}  // namespace
}  // namespace dosa
