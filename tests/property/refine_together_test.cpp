// Tables that gather keys refine the rows of a tile side by side, and those with narrow forms share packed keys and
// screen dense rows by integers, too: rows find what each finds for itself, whatever the number of threads. Plain C++
// makes such a table of every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/row_sample.hpp"
#include "cpu/row_work.hpp"
#include "support/emulated_tiles.hpp"
#include "support/parity.hpp"
#include "support/plain_narrow.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

/// nullptr: the emulated tiles as they are.
std::vector<const cpu::Kernels*> bases() {
  std::vector<const cpu::Kernels*> tables;
  for (const Isa isa : runnable_isas()) {
    if (isa != Isa::amx) tables.push_back(cpu::choose(isa).kernels);
  }
  if (slow_build()) tables.resize(1);
  if (emulated_tiles() != nullptr) tables.push_back(nullptr);
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
    EXPECT_EQ(x.dot_products, y.dot_products) << row;
    EXPECT_TRUE(same_bits(x.first_threshold, y.first_threshold)) << row;
    EXPECT_TRUE(same_bits(x.threshold, y.threshold)) << row << ": " << x.threshold << " " << y.threshold;
    EXPECT_TRUE(same_bits(x.predicted, y.predicted)) << row;
    EXPECT_TRUE(same_bits(x.last_score, y.last_score) || (std::isnan(x.last_score) && std::isnan(y.last_score))) << row;
  }
}

/// How often rows were refined side by side: calls with keys of a part.
std::atomic<std::int64_t> gathered{0};
decltype(cpu::Kernels::gathered_bounds) counted = nullptr;
void counting_gather(const cpu::Form& form, const KeySource& keys, const std::int32_t* index, std::int64_t count,
                     float* lower, float* upper) {
  gathered += count;
  counted(form, keys, index, count, lower, upper);
}

class RefineTogether : public testing::TestWithParam<const cpu::Kernels*> {
 protected:
  void SetUp() override {
    cpu::shortest_predicted = 1;
    together_ = GetParam() == nullptr ? *emulated_tiles() : with_plain_narrow(*GetParam());
    alone_ = together_;
    alone_.gathered_bounds = nullptr;
    counted = together_.gathered_bounds;
    together_.gathered_bounds = counting_gather;
    gathered = 0;
  }
  void TearDown() override { cpu::tiles_stand_in = nullptr; }

  void compare(const Problem& problem, Options options, const std::string& name) {
    options.isa = Isa::amx;
    Observed first;
    for (const int threads : {1, 2, 7}) {
      options.threads = threads;
      const std::string what = name + ": " + describe(options);
      Observed together = observe(together_, problem, options, what);
      if (threads > 1) {
        if (const auto bad = difference(first.result, together.result)) ADD_FAILURE() << what << ": " << *bad;
        expect_same_reports(first.stats, together.stats, what);
        continue;
      }
      first = std::move(together);
      if (const auto bad = difference(expected(problem, options), first.result))
        ADD_FAILURE() << what << ", the oracle's: " << *bad;
      // Gathered keys and keys in panels have the same bounds in plain C++; of tiles, only the selection is the same.
      const Observed alone = observe(alone_, problem, options, what);
      if (const auto bad = difference(alone.result, first.result)) ADD_FAILURE() << what << ": " << *bad;
      if (GetParam() != nullptr) expect_same_reports(alone.stats, first.stats, what);
    }
  }

  static bool slow() { return slow_build() || GetParam() == nullptr; }

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
    options.ablation.narrow = random.chance(0.7);
    return options;
  }

  cpu::Kernels together_{}, alone_{};
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RefineTogether);
INSTANTIATE_TEST_SUITE_P(Tables, RefineTogether, testing::ValuesIn(bases()), [](const auto& instance) {
  return std::string(instance.param == nullptr ? "tiles_emulated" : name(instance.param->isa));
});

TEST_P(RefineTogether, ChangesNothing) {
  workloads::Random random(77 + test_seed()), dense_random(78 + test_seed());
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
      compare(workload.problem, drawn(random, std::min(workload.top_k, keys / 2), keys), name);
    Options dense = drawn(dense_random, std::min(workload.top_k, keys / 2), keys);
    dense.path = Path::dense;
    compare(workload.problem, dense, name);
  }
  EXPECT_GT(gathered, 10000) << "or rows refined alone, and nothing was compared";
}

/// Keys that spread over several parts, windows of every row's own, winners near and far.
TEST_P(RefineTogether, ReachesOverManyParts) {
  workloads::Size size{slow() ? 9 : 40, slow() ? 18000 : 30000, 8, 32, 60, 11};
  workloads::Workload workload = workloads::make(workloads::find("indexer_like"), size);
  const auto rows = static_cast<std::size_t>(workload.problem.q.shape[0]);
  std::vector<std::int32_t> first(rows), last(rows);
  for (std::size_t t = 0; t < rows; ++t) {
    first[t] = static_cast<std::int32_t>(t * 37);
    last[t] = static_cast<std::int32_t>(size.keys - (t % 3 == 0 ? 4000 : 11 * static_cast<std::int64_t>(rows - t)));
  }
  workload.problem.ks = TensorView<const std::int32_t, 1>::contiguous(first.data(), {workload.problem.q.shape[0]});
  workload.problem.ke = TensorView<const std::int32_t, 1>::contiguous(last.data(), {workload.problem.q.shape[0]});
  for (const std::int64_t top_k : {1, 60, 900}) {
    for (const Path path : {Path::dosa, Path::dense}) {
      Options options = top(top_k, Backend::cpu);
      options.path = path;
      compare(workload.problem, options, "ragged");
    }
  }
  EXPECT_GT(gathered, 0);
}

/// A sample that misleads: rows list keys of a screen whose floor was too high, and start anew after the next screen.
TEST_P(RefineTogether, RowsThatAreScreenedAgainStartAnew) {
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
  for (const Path path : {Path::dosa, Path::dense}) {
    Options options = top(300, Backend::cpu);
    options.path = path;
    options.ablation.seeds = false;
    compare(workload.problem, options, "misleading");
    options.isa = Isa::amx;
    EXPECT_EQ(observe(together_, workload.problem, options, "misleading").stats.rows_rescreened, kRows);
  }
}

/// Integers leave some keys about the threshold, which get the dense form's bounds; no more are scored for it.
TEST_P(RefineTogether, DenseRowsAreScreenedByIntegers) {
  constexpr int kHeads = 8;
  constexpr std::int64_t kTopK = 700;  // more candidates than are looked at at once
  const workloads::Workload workload =
      workloads::make(workloads::find("indexer_like"), {slow() ? 5 : 20, 9000, kHeads, 64, kTopK, 12});
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    Options options = top(kTopK, Backend::cpu);
    options.path = Path::dense;
    options.model = model;
    compare(workload.problem, options, "integers");
    options.isa = Isa::amx;
    const Observed integers = observe(together_, workload.problem, options, "integers");
    options.ablation.narrow = false;
    const Observed wide = observe(together_, workload.problem, options, "wide");
    for (std::size_t t = 0; t < wide.stats.row_reports.size(); ++t) {
      const RowReport &with = integers.stats.row_reports[t], &without = wide.stats.row_reports[t];
      EXPECT_EQ(with.path, Path::dense);
      const double refined = (with.dot_products - without.dot_products) / kHeads;
      EXPECT_GT(refined, 0) << t;
      EXPECT_LT(refined, static_cast<double>(2 * without.exact + kTopK / 2)) << t;
      EXPECT_LE(with.exact, without.exact + 8) << t;
      EXPECT_FALSE(with.rescreened) << t;
      EXPECT_EQ(with.predicted, without.predicted) << t;
    }
  }
}

}  // namespace
}  // namespace dosa::test
