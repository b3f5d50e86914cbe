// Whole selections over emulated tiles: what panels of 64 keys, tiles of 32 rows and rows of one bf16 do to a run, on
// machines without AMX, too.
#include "support/emulated_tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/parity.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

class SelectionOverTiles : public testing::TestWithParam<const char*> {};

TEST_P(SelectionOverTiles, IsTheOracles) {
  const EmulatedTiles tiles;
  if (!tiles.usable()) GTEST_SKIP() << EmulatedTiles::kWhyNot;
  const workloads::Entry& entry = workloads::find(GetParam());
  workloads::Size size = entry.small;
  size.rows = 70;  // two tiles of 32 and a part
  size.keys = slow_build() ? 330 : 1100;
  size.top_k = std::min<std::int64_t>(size.top_k, size.keys / 9);
  const workloads::Workload workload = workloads::make(entry, size);
  Parity parity(workload.problem, size.top_k, GetParam());
  workloads::Random random(31 + test_seed());
  Options fixed = top(size.top_k, Backend::cpu);
  fixed.isa = Isa::amx;
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (const Path path : {Path::automatic, Path::dense, Path::dosa}) {
      fixed.model = model;
      fixed.path = path;
      for (int draw = slow_build() ? 2 : 0; draw < 4 && !HasFailure(); ++draw) parity.run_drawn(fixed, random);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, SelectionOverTiles,
                         testing::Values("indexer_like", "indexer_signed_scales", "mixed_batch", "threshold_ties",
                                         "crowded_boundary", "codes_cancelling", "scales_special", "shared_pages"),
                         [](const auto& parameters) { return std::string(parameters.param); });

}  // namespace
}  // namespace dosa::test
