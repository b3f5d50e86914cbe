// Whole selections over emulated tiles: what panels of 64 keys, tiles of 32 rows and rows of one bf16 do to a run, on
// machines without AMX, too.
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/amx_emulated.hpp"
#include "cpu/dispatch.hpp"
#include "support/parity.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

class EmulatedTiles : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::vector<Isa> isas = runnable_isas();
    if (std::find(isas.begin(), isas.end(), Isa::avx512) == isas.end())
      GTEST_SKIP() << "no AVX-512, in which the rest of these kernels is written";
    cpu::tiles_stand_in = cpu::amx_emulated_kernels();
  }
  void TearDown() override { cpu::tiles_stand_in = nullptr; }
};

TEST_P(EmulatedTiles, SelectWhatTheOracleDoes) {
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

INSTANTIATE_TEST_SUITE_P(Inputs, EmulatedTiles,
                         testing::Values("indexer_like", "indexer_signed_scales", "mixed_batch", "threshold_ties",
                                         "crowded_boundary", "codes_cancelling", "scales_special", "shared_pages"),
                         [](const auto& parameters) { return std::string(parameters.param); });

}  // namespace
}  // namespace dosa::test
