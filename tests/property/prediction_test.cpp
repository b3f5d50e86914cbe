// T9 d attacked: samples that mislead, so that a row's predicted threshold is too high and the screen left winners out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/layout.hpp"
#include "cpu/row_sample.hpp"
#include "cpu/row_work.hpp"
#include "support/emulated_tiles.hpp"
#include "support/parity.hpp"
#include "support/reports.hpp"
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

void all_rescreened(const workloads::Workload& workload, std::int64_t top_k, const std::vector<Isa>& isas) {
  Parity parity(workload.problem, top_k, "misleading");
  for (const Isa isa : isas) {
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
void too_few_keys(const std::vector<Isa>& isas) {
  all_rescreened(misleading(3, 1000.0F, [](std::int64_t i) { return static_cast<float>(i % 977); }), 500, isas);
}

/// Upper bounds of enough keys reach the floor, their lower bounds do not: of a tenth of the keys, which a certified
/// row may refine, or of a third, which is so many that it goes dense (where a survivor is dear, before it knows its
/// floor).
void only_bounds(const std::vector<Isa>& isas) {
  for (const std::int64_t one_in : {10, 3}) {
    const auto score = [one_in](std::int64_t i) { return i % one_in == 0 ? 999.999F : 0.5F; };
    all_rescreened(misleading(3, 1000.0F, score), 1000, isas);
  }
}

TEST(Prediction, TooFewKeysReachTheFloor) { too_few_keys(runnable_isas()); }

TEST(Prediction, OnlyBoundsReachTheFloor) { only_bounds(runnable_isas()); }

TEST(Prediction, TilesAreMisledAsOthersAre) {
  const EmulatedTiles tiles;
  if (!tiles.usable()) GTEST_SKIP() << EmulatedTiles::kWhyNot;
  too_few_keys({Isa::amx});
  only_bounds({Isa::amx});
}

/// On inputs like an indexer's the prediction holds, keeps few keys, and its floor is below the threshold.
TEST(Prediction, HoldsOnRowsLikeAnIndexers) {
  const workloads::Workload workload = workloads::make(workloads::find("indexer_like"), {24, 40000, 16, 64, 200, 5});
  for (const Path path : {Path::dense, Path::dosa}) {
    Options options = top(200, Backend::cpu);
    options.path = path;
    const Stats stats = run_with_reports(workload.problem, options);
    EXPECT_LE(stats.rows_rescreened, 1);
    std::int64_t predicted = 0;
    for (const RowReport& report : stats.row_reports) {
      predicted += std::isfinite(report.predicted) ? 1 : 0;
      EXPECT_TRUE(report.rescreened || report.predicted <= report.threshold) << report.predicted;
    }
    EXPECT_GT(predicted, stats.rows / 2);
  }
}

std::vector<RowReport> reports_of(const Problem& problem, const Options& options) {
  Stats stats;
  stats.row_reports.resize(static_cast<std::size_t>(problem.q.shape[0]));
  static_cast<void>(run_guarded(problem, options, "reports", {}, &stats));
  return stats.row_reports;
}

/// Rows that forced keys fill, rows that no bound can be computed for, and a backend that has no screen.
TEST(Prediction, RowsWithoutOneSaySo) {
  cpu::shortest_predicted = 1;
  const auto expect_none = [&](const Options& options, std::initializer_list<float> weights) {
    workloads::Builder builder({3, 600, 4, 32, 10, 1});
    builder.control(std::vector<float>(600, 1.0F), false);
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::size_t h = 0; h < weights.size(); ++h)
        builder.weight(row, static_cast<std::int64_t>(h)) = weights.begin()[h];
    const workloads::Workload workload = builder.finish();
    for (const RowReport& report : reports_of(workload.problem, options)) {
      EXPECT_EQ(report.predicted, -std::numeric_limits<float>::infinity()) << describe(options);
      EXPECT_EQ(report.first_threshold, -std::numeric_limits<float>::infinity()) << describe(options);
      EXPECT_TRUE(std::isnan(report.last_score) || report.exact > 0) << describe(options);
      EXPECT_FALSE(report.rescreened) << describe(options);
    }
  };
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Options forced = top(10, backend);
    forced.always_first = 10;
    expect_none(forced, {});
    expect_none(top(10, backend), {std::numeric_limits<float>::infinity()});
    expect_none(top(10, backend), {1, std::numeric_limits<float>::quiet_NaN()});
    expect_none(top(10, backend), {3e38F, 3e38F});
  }
  expect_none(top(10, Backend::reference), {});
}

/// A caller that writes keys under a run gets some selection, not a loop without end: here all scores vanish after the
/// screen, so the threshold that was proven before keeps nothing.
TEST(Prediction, KeysThatChangeUnderARunEndIt) {
  constexpr std::int64_t kCount = 400;
  workloads::Builder builder({1, kCount, 4, 32, 10, 1});
  builder.control(std::vector<float>(kCount, 3.0F), false);
  workloads::Workload workload = builder.finish();
  auto& keys = std::get<ContiguousKeys>(workload.problem.keys);
  std::vector<float> scales(keys.scales.data, keys.scales.data + kCount);
  const std::vector<float> before = scales;
  keys.scales = TensorView<const float, 1>::contiguous(scales.data(), {kCount});

  struct Eraser final : cpu::RowObserver {
    explicit Eraser(std::vector<float>& target) : values(target) {}
    void screened(const cpu::RowWork&) override { std::fill(values.begin(), values.end(), 0.0F); }
    std::vector<float>& values;
  } eraser(scales);
  for (const Isa isa : runnable_isas()) {
    Options options = top(10, Backend::cpu);
    options.isa = isa;
    options.path = Path::dosa;
    options.threads = 1;
    options.ablation.best_first = false;
    const Plan decided = plan(shape_of(workload.problem), options);
    std::vector<std::byte> workspace(decided.workspace_bytes()), carry(decided.carry_bytes());
    std::vector<std::int32_t> indices(10), lengths(1);
    Selection selection;
    selection.indices = TensorView<std::int32_t, 2>::contiguous(indices.data(), {1, 10});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {1});
    Stats stats;
    scales = before;
    run(decided, workload.problem, selection, workspace, carry);
    cpu::row_observer = &eraser;
    run(decided, workload.problem, selection, workspace, carry, &stats);
    cpu::row_observer = nullptr;
    EXPECT_EQ(stats.rows_rescreened, 1) << "the threshold of the seeds no longer holds";
    EXPECT_EQ(lengths[0], 10);
    for (const std::int32_t index : indices) EXPECT_TRUE(index >= 0 && index < kCount) << index;
  }
}

}  // namespace
}  // namespace dosa::test
