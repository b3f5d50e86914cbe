// A row's answer depends on the row alone: not on the batch it came in, its place there, the runs before, the repeats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/row_work.hpp"
#include "support/parity.hpp"
#include "support/rows.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

Options drawn_options(workloads::Random& random, std::int64_t top_k, ScoreModel model) {
  const std::vector<Isa> isas = runnable_isas();
  constexpr Path paths[] = {Path::automatic, Path::dense, Path::dosa};
  constexpr int threads[] = {1, 2, 7};
  Options options = top(top_k, Backend::cpu);
  options.model = model;
  options.isa = isas[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(isas.size())))];
  options.path = paths[random.below(3)];
  options.threads = threads[random.below(3)];
  options.scores = random.chance(0.5);
  options.order = random.chance(0.5) ? Order::index : Order::score;
  return options;
}

class Batches : public testing::TestWithParam<const char*> {};

/// Each row alone, in batches of 8, 64 and 65 rows (vllm#57815), in drawn orders and with repetitions.
TEST_P(Batches, RowsDoNotSeeEachOther) {
  cpu::shortest_predicted = 1;
  const workloads::Entry& entry = workloads::find(GetParam());
  workloads::Size size = entry.small;
  size.rows = 11;
  size.keys = full_sizes() ? 30000 : 5000;  // above the window that the automatic path calls short
  const workloads::Workload workload = workloads::make(entry, size);
  const std::int64_t rows = workload.problem.q.shape[0];
  workloads::Random random(71 + test_seed());
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    const ScoreTable table(workload.problem, model);
    const auto check = [&](const std::vector<std::int64_t>& picked) {
      const Options options = drawn_options(random, workload.top_k, model);
      const PickedRows problem(workload.problem, picked);
      const OwnedSelection owned = select(problem.problem(), options);
      const Result found{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
      const Result wanted = pick(expected(workload.problem, options, table), picked);
      EXPECT_EQ(difference(wanted, found), std::nullopt) << picked.size() << " rows " << describe(options);
    };
    for (std::int64_t t = 0; t < rows; ++t) check({t});
    for (const std::int64_t count : {2, 8, 9, 64, 65}) {
      for (int round = slow_build() ? 2 : 0; round < 3; ++round) {
        std::vector<std::int64_t> picked(static_cast<std::size_t>(count));
        for (std::int64_t& t : picked) t = random.below(rows);
        check(picked);
      }
    }
    std::vector<std::int64_t> backwards(static_cast<std::size_t>(rows));
    std::iota(backwards.rbegin(), backwards.rend(), std::int64_t{0});
    check(backwards);
  }
}

/// Twenty calls (eight under a sanitizer), threads racing, one workspace and one carry that nobody cleans: the same
/// bytes each time.
TEST_P(Batches, TwentyRepeatsAreEqual) {
  cpu::shortest_predicted = 1;
  const workloads::Entry& entry = workloads::find(GetParam());
  workloads::Size size = entry.small;
  size.rows = 40;
  size.keys = full_sizes() ? 20000 : slow_build() ? 500 : 1500;
  size.top_k = std::min(size.top_k, size.keys / 12);  // few enough for a predicted threshold
  const workloads::Workload workload = workloads::make(entry, size);
  const Problem& problem = workload.problem;
  const std::int64_t rows = problem.q.shape[0];
  std::int64_t predicted = 0;
  for (const Isa isa : runnable_isas()) {
    for (const Path path : {Path::dense, Path::dosa}) {
      Options options = top(workload.top_k, Backend::cpu);
      options.model = path == Path::dense ? ScoreModel::f64 : ScoreModel::sm90;
      options.isa = isa;
      options.path = path;
      options.threads = 7;
      options.scores = true;
      const Result wanted = expected(problem, options);
      const Plan decided = plan(shape_of(problem), options);
      std::vector<std::byte> workspace(decided.workspace_bytes()), carry(decided.carry_bytes());
      for (int repeat = 0; repeat < (slow_build() ? 8 : 20); ++repeat) {
        Result found{rows, options.top_k, std::vector<std::int32_t>(wanted.indices.size(), 77),
                     std::vector<std::int32_t>(wanted.lengths.size(), 77),
                     std::vector<float>(wanted.scores.size(), 77)};
        Selection selection;
        selection.indices = TensorView<std::int32_t, 2>::contiguous(found.indices.data(), {rows, options.top_k});
        selection.lengths = TensorView<std::int32_t, 1>::contiguous(found.lengths.data(), {rows});
        selection.scores = TensorView<float, 2>::contiguous(found.scores.data(), {rows, options.top_k});
        Stats stats;
        stats.row_reports.resize(static_cast<std::size_t>(rows));
        run(decided, problem, selection, workspace, carry, &stats);
        ASSERT_EQ(difference(wanted, found), std::nullopt) << "repeat " << repeat << " " << describe(options);
        EXPECT_EQ(stats.rows, rows);
        for (const RowReport& report : stats.row_reports) predicted += std::isfinite(report.predicted) ? 1 : 0;
      }
    }
  }
  if (entry.name == "indexer_like") {
    EXPECT_GT(predicted, 0) << "floors and the slices' lists are what threads could race for";
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, Batches,
                         testing::Values("indexer_like", "indexer_poisoned_keys", "indexer_signed_scales",
                                         "mixed_batch", "threshold_ties", "crowded_boundary", "exponent_ends",
                                         "relu_plateau", "shared_pages", "next_n_3", "scaled", "all_positive_heads"),
                         [](const auto& parameters) { return std::string(parameters.param); });

/// The certified path must be what the parity tests of "dosa" exercise, or they prove nothing about it.
TEST(Paths, AreTakenWhenAsked) {
  const workloads::Workload workload = workloads::make(workloads::find("indexer_like"), {20, 6000, 32, 128, 100, 5});
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (const Isa isa : runnable_isas()) {
      Options options = top(100, Backend::cpu);
      options.model = model;
      options.isa = isa;
      options.path = Path::dosa;
      const OwnedSelection certified = select(workload.problem, options);
      EXPECT_GT(certified.stats.rows_dosa, 0) << describe(options);
      EXPECT_LT(certified.stats.survivors, certified.stats.visible) << describe(options);
      options.path = Path::dense;
      const OwnedSelection dense = select(workload.problem, options);
      EXPECT_EQ(dense.stats.rows_dense, 20) << describe(options);
      EXPECT_LT(dense.stats.exact, dense.stats.visible / 2) << describe(options);
      EXPECT_EQ(dense.indices, certified.indices);
    }
  }
}

/// Counters are sums over rows: the same at every thread count, timings apart.
TEST(Paths, CountersDoNotDependOnThreads) {
  for (const char* name : {"indexer_like", "mixed_batch", "shared_pages"}) {
    const workloads::Workload workload = workloads::make(workloads::find(name), {60, 5000, 16, 64, 90, 5});
    const auto rows = static_cast<std::size_t>(workload.problem.q.shape[0]);
    for (const Path path : {Path::automatic, Path::dense, Path::dosa}) {
      Options options = top(90, Backend::cpu);
      options.path = path;
      Stats first;
      for (const int threads : {1, 2, 7}) {
        options.threads = threads;
        Stats stats;
        stats.row_reports.resize(rows);
        static_cast<void>(run_guarded(workload.problem, options, name, {}, &stats));
        if (threads == 1) first = stats;
        const std::string what = std::string(name).append(" ").append(describe(options));
        EXPECT_EQ(stats.rows, first.rows) << what;
        EXPECT_EQ(stats.rows_dense, first.rows_dense) << what;
        EXPECT_EQ(stats.rows_dosa, first.rows_dosa) << what;
        EXPECT_EQ(stats.rows_model, first.rows_model) << what;
        EXPECT_EQ(stats.visible, first.visible) << what;
        EXPECT_EQ(stats.survivors, first.survivors) << what;
        EXPECT_EQ(stats.exact, first.exact) << what;
        EXPECT_EQ(stats.dot_products, first.dot_products) << what;
        for (std::size_t t = 0; t < rows; ++t) {
          EXPECT_EQ(stats.row_reports[t].survivors, first.row_reports[t].survivors) << what << " row " << t;
          EXPECT_EQ(stats.row_reports[t].retained_heads, first.row_reports[t].retained_heads) << what << " row " << t;
        }
      }
    }
  }
}

TEST(Paths, SeedsOfEveryQualityChangeNothing) {
  const workloads::Workload workload =
      workloads::make(workloads::find("indexer_signed_scales"), {24, 5000, 16, 64, 90, 5});
  const workloads::Workload other = workloads::make(workloads::find("seeds_mislead"), {24, 5000, 16, 64, 90, 6});
  workloads::Random random(5);
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    const ScoreTable table(workload.problem, model);
    for (const Isa isa : runnable_isas()) {
      for (const bool best_first : {false, true}) {
        Options options = top(90, Backend::cpu);
        options.model = model;
        options.isa = isa;
        options.path = Path::dosa;
        options.threads = 2;
        options.ablation.best_first = best_first;
        const Result wanted = expected(workload.problem, options, table);
        std::vector<std::byte> carry;
        Surroundings around;
        around.carry = &carry;
        carry.resize(plan(shape_of(workload.problem), options).carry_bytes());
        for (int call = 0; call < 6; ++call) {
          // Seeds of nobody, of the same rows, of the same rows again, of other keys, one key over and over, damaged.
          if (call == 4) {
            // Every word behind the header: as many seeds as there is room for, all of them the best key of the last
            // row.
            Options one = options;
            one.top_k = 1;
            const std::int32_t best = expected(workload.problem, one, table).indices.back();
            for (std::size_t at = 32; at + 4 <= carry.size(); at += 4) std::memcpy(carry.data() + at, &best, 4);
          }
          if (call == 3) static_cast<void>(run_guarded(other.problem, options, "other", around));
          if (call == 5)
            for (int hit = 0; hit < 40; ++hit)
              carry[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(carry.size())))] =
                  static_cast<std::byte>(random.bits());
          const Result found = run_guarded(workload.problem, options, "carry", around);
          ASSERT_EQ(difference(wanted, found), std::nullopt) << "call " << call << " " << describe(options);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dosa::test
