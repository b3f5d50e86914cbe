// T9 d attacked: samples that mislead, so that a row's predicted threshold is too high and the screen left winners out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/layout.hpp"
#include "cpu/row_sample.hpp"
#include "support/parity.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

constexpr std::int64_t kKeys = 90000;  // more than a sample of one size serves: further random keys are drawn

/// Scores of `special` at every key that a row's sample looks at, others elsewhere.
template <class Other>
workloads::Workload misleading(std::int64_t rows, float special, const Other& other) {
  workloads::Builder builder({rows, kKeys, 4, 32, 100, 1});
  std::vector<float> wanted(static_cast<std::size_t>(kKeys));
  for (std::int64_t i = 0; i < kKeys; ++i) wanted[static_cast<std::size_t>(i)] = other(i);
  std::vector<std::int32_t> sampled(cpu::kRandomSample);
  cpu::random_keys({0, kKeys}, cpu::kRandomSample, cpu::kSampleHash, sampled.data());
  const std::int64_t more = kKeys / cpu::kPredictionStride - cpu::kRandomSample;
  EXPECT_GT(more, 0);
  sampled.resize(static_cast<std::size_t>(cpu::kRandomSample + more));
  cpu::random_keys({0, kKeys}, more, cpu::kMoreKeysHash, sampled.data() + cpu::kRandomSample);
  for (const std::int32_t key : sampled) wanted[static_cast<std::size_t>(key)] = special;
  builder.control(wanted, false);
  // Codes that no query sees would only make some keys' bounds wider than others'.
  for (std::int64_t i = 0; i < kKeys; ++i) std::fill_n(builder.key(i) + 1, builder.size.head_dim - 1, std::uint8_t{0});
  return builder.finish();
}

void all_rescreened(const workloads::Workload& workload, std::int64_t top_k) {
  Parity parity(workload.problem, top_k, "misleading");
  for (const Isa isa : runnable_isas()) {
    for (const Path path : {Path::dense, Path::dosa}) {
      for (const int threads : {1, 3}) {
        Options options = top(top_k, Backend::cpu);
        options.isa = isa;
        options.path = path;
        options.threads = threads;
        options.ablation.seeds = false;  // winners of earlier rows would put the prediction right
        parity.run_exactly(options);
        const OwnedSelection found = select(workload.problem, options);
        EXPECT_EQ(found.stats.rows_rescreened, workload.problem.q.shape[0]) << describe(options);
        options.ablation.prediction = false;
        EXPECT_EQ(select(workload.problem, options).stats.rows_rescreened, 0) << describe(options);
      }
    }
  }
}

/// Fewer keys reach the floor than are wanted.
TEST(Prediction, TooFewKeysReachTheFloor) {
  all_rescreened(misleading(3, 1000.0F, [](std::int64_t i) { return static_cast<float>(i % 977); }), 500);
}

/// Upper bounds of enough keys reach the floor, their lower bounds do not.
TEST(Prediction, OnlyBoundsReachTheFloor) {
  const float below = 999.999F;
  all_rescreened(misleading(3, 1000.0F, [below](std::int64_t i) { return i % 3 == 0 ? below : 0.5F; }), 1000);
}

/// On inputs like an indexer's the prediction holds, keeps few keys, and its floor is below the threshold.
TEST(Prediction, HoldsOnRowsLikeAnIndexers) {
  const workloads::Workload workload = workloads::make(workloads::find("indexer_like"), {24, 40000, 16, 64, 200, 5});
  for (const Path path : {Path::dense, Path::dosa}) {
    Options options = top(200, Backend::cpu);
    options.path = path;
    const Plan decided = plan(shape_of(workload.problem), options);
    const std::int64_t rows = workload.problem.q.shape[0];
    std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * options.top_k)),
        lengths(static_cast<std::size_t>(rows));
    Selection selection;
    selection.indices = TensorView<std::int32_t, 2>::contiguous(indices.data(), {rows, options.top_k});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {rows});
    std::vector<std::byte> workspace(decided.workspace_bytes());
    Stats stats;
    stats.row_reports.resize(static_cast<std::size_t>(rows));
    run(decided, workload.problem, selection, workspace, {}, &stats);
    EXPECT_LE(stats.rows_rescreened, 1);
    std::int64_t predicted = 0;
    for (const RowReport& report : stats.row_reports) {
      predicted += std::isfinite(report.predicted) ? 1 : 0;
      EXPECT_TRUE(report.rescreened || report.predicted <= report.threshold) << report.predicted;
    }
    EXPECT_GT(predicted, rows / 2);
  }
}

}  // namespace
}  // namespace dosa::test
