// Rows that refine keys together find what each finds for itself: the same bytes, the same thresholds, the same path.
#include "cpu/shared_refine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/row_sample.hpp"
#include "cpu/row_work.hpp"
#include "support/emulated_tiles.hpp"
#include "support/parity.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

/// A table under the name of the tiles, with other costs of refining together: whichever it is, rows can.
cpu::Kernels table_with(const cpu::Kernels& base, const cpu::SharedCosts& together) {
  cpu::Kernels table = base;
  table.isa = Isa::amx;
  table.costs.together = together;
  return table;
}

/// Every table that this machine runs, and the emulated tiles.
std::vector<const cpu::Kernels*> bases() {
  std::vector<const cpu::Kernels*> tables;
  for (const Isa isa : runnable_isas()) tables.push_back(cpu::choose(isa).kernels);
  const EmulatedTiles tiles;
  if (tiles.usable()) tables.push_back(cpu::amx_emulated_kernels());
  return tables;
}

struct Observed {
  Result result;
  Stats stats;
};

Observed observe(const cpu::Kernels& table, const Problem& problem, const Options& options, const std::string& what) {
  cpu::tiles_stand_in = &table;
  Observed seen;
  seen.stats.row_reports.resize(static_cast<std::size_t>(problem.q.shape[0]));
  seen.result = run_guarded(problem, options, what, {}, &seen.stats);
  return seen;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same_reports(const Stats& a, const Stats& b, const std::string& what) {
  for (std::size_t t = 0; t < a.row_reports.size(); ++t) {
    const RowReport &x = a.row_reports[t], &y = b.row_reports[t];
    const std::string row = what + " row " + std::to_string(t);
    EXPECT_EQ(x.path, y.path) << row;
    EXPECT_EQ(x.reason, y.reason) << row;
    EXPECT_EQ(x.retained_heads, y.retained_heads) << row;
    EXPECT_EQ(x.aggregates, y.aggregates) << row;
    EXPECT_EQ(x.survivors, y.survivors) << row;
    EXPECT_EQ(x.exact, y.exact) << row;
    EXPECT_EQ(x.seeds, y.seeds) << row;
    EXPECT_EQ(x.rescreened, y.rescreened) << row;
    EXPECT_TRUE(same_bits(x.first_threshold, y.first_threshold)) << row;
    EXPECT_TRUE(same_bits(x.threshold, y.threshold)) << row << ": " << x.threshold << " " << y.threshold;
    EXPECT_TRUE(same_bits(x.predicted, y.predicted)) << row;
    EXPECT_TRUE(same_bits(x.last_score, y.last_score) || (std::isnan(x.last_score) && std::isnan(y.last_score))) << row;
  }
}

class SharedRefinement : public testing::TestWithParam<const cpu::Kernels*> {
 protected:
  void SetUp() override { cpu::shortest_predicted = 1; }
  void TearDown() override { cpu::tiles_stand_in = nullptr; }

  /// Rows whose work is another one when they refine together; all else is the same, at every number of threads.
  std::int64_t compare(const Problem& problem, Options options, const std::string& name) {
    options.isa = Isa::amx;
    std::int64_t together = 0;
    Stats first;
    for (const int threads : {1, 2, 7}) {
      options.threads = threads;
      const std::string what = name + ": " + describe(options);
      const Observed alone = observe(never_, problem, options, what);
      const Observed shared = observe(always_, problem, options, what);
      if (const auto bad = difference(alone.result, shared.result)) ADD_FAILURE() << what << ": " << *bad;
      expect_same_reports(alone.stats, shared.stats, what);
      if (threads == 1) {
        first = shared.stats;
        if (const auto bad = difference(expected(problem, options), shared.result))
          ADD_FAILURE() << what << ", the oracle's: " << *bad;
      }
      for (std::size_t t = 0; t < first.row_reports.size(); ++t) {
        const double dots = shared.stats.row_reports[t].dot_products;
        EXPECT_EQ(dots, first.row_reports[t].dot_products) << what << " row " << t;
        EXPECT_GE(dots, alone.stats.row_reports[t].dot_products) << what << " row " << t;
        together += dots > alone.stats.row_reports[t].dot_products ? 1 : 0;
      }
    }
    return together;
  }

  /// Emulated tiles take a hundred times as long as the processor's.
  static bool slow() { return slow_build() || GetParam() == cpu::amx_emulated_kernels(); }

  static Options drawn(workloads::Random& random, std::int64_t top_k, std::int64_t keys) {
    Options options = top(random.chance(0.2) ? keys - random.below(keys / 8 + 1) : top_k, Backend::cpu);
    options.model = random.chance(0.5) ? ScoreModel::f64 : ScoreModel::sm90;
    options.path = random.chance(0.8) ? Path::dosa : Path::automatic;
    options.scores = random.chance(0.5);
    options.order = random.chance(0.5) ? Order::index : Order::score;
    if (random.chance(0.4)) {
      options.always_first = random.below(top_k);
      options.always_last = random.below(top_k);
    }
    options.ablation.best_first = random.chance(0.8);
    options.ablation.prediction = random.chance(0.6);
    options.ablation.seeds = random.chance(0.7);
    return options;
  }

  const cpu::Kernels never_ = table_with(*GetParam(), {});
  const cpu::Kernels always_ = table_with(*GetParam(), {.rows = 7, .pack = 0, .products = 0, .alone = 1, .lane = 0});
};

INSTANTIATE_TEST_SUITE_P(Tables, SharedRefinement, testing::ValuesIn(bases()), [](const auto& instance) {
  return std::string(name(instance.param->isa)) + (instance.param == cpu::amx_emulated_kernels() ? "_emulated" : "");
});

TEST_P(SharedRefinement, ChangesNothingButTheWork) {
  workloads::Random random(77 + test_seed());
  std::int64_t together = 0;
  for (const char* name : {"indexer_like", "indexer_signed_scales", "mixed_batch", "next_n_3", "threshold_ties",
                           "crowded_boundary", "scales_special", "indexer_poisoned_keys", "shared_pages",
                           "shared_pages_16", "windows_mid_tile", "codes_cancelling"}) {
    const workloads::Entry& entry = workloads::find(name);
    workloads::Size size = entry.small;
    size.rows = slow() ? 34 : 70;  // whole tiles and a part of one
    size.keys = slow() ? 400 : 900;
    size.top_k = std::min<std::int64_t>(size.top_k, size.keys / 12);
    const workloads::Workload workload = workloads::make(entry, size);
    const std::int64_t keys = keys_of(workload.problem);
    for (int draw = slow() ? 2 : 0; draw < 4 && !HasFailure(); ++draw)
      together += compare(workload.problem, drawn(random, std::min(workload.top_k, keys / 2), keys), name);
  }
  EXPECT_GT(together, 100) << "or the rows refined alone, and nothing was compared";
}

/// Keys that spread over many stretches and lane tables, windows of every row's own, winners near and far.
TEST_P(SharedRefinement, ReachesOverManySlices) {
  workloads::Size size{slow() ? 9 : 20, slow() ? 9000 : 30000, 8, 32, 60, 11};
  workloads::Workload workload = workloads::make(workloads::find("indexer_like"), size);
  const auto rows = static_cast<std::size_t>(workload.problem.q.shape[0]);
  std::vector<std::int32_t> first(rows), last(rows);
  for (std::size_t t = 0; t < rows; ++t) {
    first[t] = static_cast<std::int32_t>(t * 37);
    last[t] = static_cast<std::int32_t>(size.keys - (t % 3 == 0 ? 4000 : 11 * static_cast<std::int64_t>(rows - t)));
  }
  workload.problem.ks = TensorView<const std::int32_t, 1>::contiguous(first.data(), {workload.problem.q.shape[0]});
  workload.problem.ke = TensorView<const std::int32_t, 1>::contiguous(last.data(), {workload.problem.q.shape[0]});
  std::int64_t together = 0;
  for (const std::int64_t top_k : {1, 60, 900}) {
    Options options = top(top_k, Backend::cpu);
    options.path = Path::dosa;
    together += compare(workload.problem, options, "ragged");
  }
  EXPECT_GT(together, 0);
}

/// A sample that misleads: rows list keys of a screen whose floor was too high, and start anew after the next screen.
TEST_P(SharedRefinement, RowsThatAreScreenedAgainStartAnew) {
  constexpr std::int64_t kKeys = 9000, kRows = 9;
  workloads::Builder builder({kRows, kKeys, 4, 32, 300, 1});
  std::vector<float> wanted(kKeys);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = i % 10 == 0 ? 999.996F : 0.5F;
  std::vector<std::int32_t> sampled(cpu::kRandomSample);
  cpu::random_keys({0, kKeys}, cpu::kRandomSample, cpu::kSampleHash, sampled.data());
  for (const std::int32_t key : sampled) wanted[static_cast<std::size_t>(key)] = 1000;
  builder.control(wanted, false);
  for (std::int64_t i = 0; i < kKeys; ++i) std::fill_n(builder.key(i) + 1, 31, std::uint8_t{0});
  const workloads::Workload workload = builder.finish();
  Options options = top(300, Backend::cpu);
  options.path = Path::dosa;
  options.ablation.seeds = false;
  compare(workload.problem, options, "misleading");
  options.isa = Isa::amx;
  EXPECT_EQ(observe(always_, workload.problem, options, "misleading").stats.rows_rescreened, kRows);
}

/// What is measured decides: neighbours of one sequence share, rows that have nothing in common do not.
TEST_P(SharedRefinement, HappensWhereItPays) {
  constexpr std::int64_t kKeys = 4000, kRows = 8;
  const auto extra = [&](bool alike) {
    workloads::Builder builder({kRows, kKeys, 8, 32, 40, 1});
    for (std::int64_t i = 0; i < kKeys; ++i)
      for (int d = 0; d < 32; ++d) builder.key(i)[d] = d < 8 ? std::uint8_t{0} : workloads::finite_code(builder.random);
    // Head h looks at dimension h; row t's keys are its own eighth of them, or all rows' are the first.
    for (std::int64_t t = 0; t < kRows; ++t) {
      const std::int64_t looked_at = alike ? 0 : t;
      builder.query(t, 0)[looked_at] = workloads::kOne;
      builder.weight(t, 0) = 1;
      for (std::int64_t i = looked_at; i < kKeys; i += kRows)
        builder.key(i)[looked_at] = workloads::e4m3_nearest(1 + static_cast<double>(i % 400) / 2);
    }
    const workloads::Workload workload = builder.finish();
    Options options = top(40, Backend::cpu);
    options.isa = Isa::amx;
    options.path = Path::dosa;
    options.threads = 1;
    options.ablation.prediction = false;
    const cpu::Kernels measured_costs =
        table_with(*GetParam(), {.rows = 7, .pack = 27, .products = 6, .alone = 9, .lane = 3});  // of tiles
    const Observed alone = observe(never_, workload.problem, options, "alone");
    const Observed measured = observe(measured_costs, workload.problem, options, "measured");
    const Observed shared = observe(always_, workload.problem, options, "shared");
    EXPECT_EQ(difference(alone.result, measured.result), std::nullopt);
    EXPECT_EQ(alone.stats.rows_dosa, kRows);
    if (alike) {
      EXPECT_EQ(measured.stats.dot_products, shared.stats.dot_products);
    } else {
      EXPECT_EQ(measured.stats.dot_products, alone.stats.dot_products);
      EXPECT_GT(shared.stats.dot_products, alone.stats.dot_products);
    }
  };
  extra(true);
  extra(false);
}

}  // namespace
}  // namespace dosa::test
