// Lists that hold fewer keys than a window has (as where a million keys leave memory for few rows): rows that run out
// of room begin again, and every row finds what it finds with room for all.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/dispatch.hpp"
#include "cpu/layout.hpp"
#include "cpu/row_sample.hpp"
#include "cpu/row_work.hpp"
#include "support/parity.hpp"
#include "support/plain_narrow.hpp"
#include "support/reports.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

constexpr std::int64_t kTopK = 24, kKeys = 6000;

class ShortLists : public testing::Test {
 protected:
  ShortLists() {
    cpu::shortest_predicted = 1;
    cpu::longest_lists = 0;  // no more than a row's preparation takes
  }
  ~ShortLists() override {
    cpu::longest_lists = std::numeric_limits<std::int64_t>::max();
    cpu::tiles_stand_in = nullptr;
  }
  ShortLists(const ShortLists&) = delete;
  ShortLists& operator=(const ShortLists&) = delete;
};

/// One in ten of the keys that a row's sample looks at has a score of 1, the others about none: a floor between these
/// is predicted, which all other keys reach.
workloads::Workload misjudged() {
  workloads::Builder builder({5, kKeys, 4, 32, kTopK, 1});
  std::vector<float> wanted(static_cast<std::size_t>(kKeys), 1000.0F);
  std::vector<std::int32_t> sample(cpu::kRandomSample);
  cpu::random_keys({0, kKeys}, cpu::kRandomSample, cpu::kSampleHash, sample.data());
  for (std::size_t j = 0; j < sample.size(); ++j)
    wanted[static_cast<std::size_t>(sample[j])] = j % 10 == 0 ? 1.0F : 0.001F;
  builder.control(wanted, false);
  return builder.finish();
}

std::vector<Options> every_way(const std::vector<Isa>& isas) {
  std::vector<Options> ways;
  for (const Isa isa : isas)
    for (const Path path : {Path::dense, Path::dosa, Path::automatic})
      for (const int threads : {1, 3}) {
        Options options = top(kTopK, Backend::cpu);
        options.isa = isa;
        options.path = path;
        options.threads = threads;
        ways.push_back(options);
      }
  return ways;
}

struct Runs {
  Stats with_short, with_all;  ///< lists
};

/// With lists of `room` keys (the result, too, is looked at) and of all.
Runs run_both(Parity& parity, const Problem& problem, const Options& options, std::int64_t room) {
  cpu::longest_lists = room;
  parity.run_exactly(options);
  Runs runs;
  runs.with_short = run_with_reports(problem, options);
  cpu::longest_lists = std::numeric_limits<std::int64_t>::max();
  runs.with_all = run_with_reports(problem, options);
  return runs;
}

void run_out_of_room(const std::vector<Isa>& isas) {
  const workloads::Workload workload = misjudged();
  Parity parity(workload.problem, kTopK, "out of room");
  for (Options options : every_way(isas)) {
    options.ablation.seeds = false;
    const auto [again, once] = run_both(parity, workload.problem, options, kKeys / 2);
    EXPECT_EQ(once.rows_rescreened, again.rows_rescreened) << describe(options);
    for (std::size_t t = 0; t < once.row_reports.size(); ++t) {
      const RowReport &x = again.row_reports[t], &y = once.row_reports[t];
      EXPECT_EQ(x.threshold, y.threshold) << describe(options);
      EXPECT_EQ(x.survivors, y.survivors) << describe(options);
      EXPECT_GE(x.dot_products, y.dot_products + static_cast<double>(kKeys)) << describe(options);
    }
  }
}

void keep_all(const std::vector<Isa>& isas) {
  const workloads::Workload workload = misjudged();
  Parity parity(workload.problem, kTopK, "no floor");
  for (Options options : every_way(isas)) {
    options.ablation.prediction = false;
    const auto [with_short, with_all] = run_both(parity, workload.problem, options, 0);
    if (options.path != Path::dense) continue;  // other rows may go dense, and know a floor then
    EXPECT_EQ(with_short.dot_products, with_all.dot_products) << describe(options);
  }
}

/// Few keys reach the floor: nothing is screened twice.
void keep_few(const std::vector<Isa>& isas) {
  const workloads::Workload workload = workloads::make(workloads::find("indexer_like"), {12, 12000, 16, 64, kTopK, 5});
  Parity parity(workload.problem, kTopK, "few keys");
  for (const Options& options : every_way(isas)) {
    const auto [few, all] = run_both(parity, workload.problem, options, kKeys / 2);
    EXPECT_EQ(few.survivors, all.survivors) << describe(options);
    EXPECT_LE(few.dot_products, 1.2 * all.dot_products) << describe(options);
  }
}

void hard_inputs(std::uint64_t seed, const std::vector<Isa>& isas) {
  workloads::Random random(seed + test_seed());
  for (const char* const name :
       {"indexer_like", "indexer_signed_scales", "concentrated", "narrow_band", "few_values_3", "threshold_ties",
        "all_equal", "sorted_up", "mixed_batch", "shared_pages", "indexer_poisoned_keys"}) {
    const workloads::Workload workload =
        workloads::make(workloads::find(name), {9, 3000, 8, 64, kTopK, static_cast<std::uint64_t>(random.below(1000))});
    Parity parity(workload.problem, kTopK, name);
    if (slow_build() && random.below(3) != 0) continue;
    for (const Isa isa : isas)
      for (const Path path : {Path::dense, Path::dosa, Path::automatic})
        for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
          if (slow_build() && (model == ScoreModel::sm90 || path == Path::automatic)) continue;
          Options fixed = top(kTopK, Backend::cpu);
          fixed.isa = isa;
          fixed.path = path;
          fixed.model = model;
          cpu::longest_lists = random.below(2) == 0 ? 0 : random.below(3000);
          parity.run_drawn(fixed, random);
        }
  }
}

TEST_F(ShortLists, ARowThatRunsOutOfRoomBeginsAgain) { run_out_of_room(runnable_isas()); }
TEST_F(ShortLists, WithoutAFloorARowHasRoomForAllKeys) { keep_all(runnable_isas()); }
TEST_F(ShortLists, FewKeysFit) { keep_few(runnable_isas()); }
TEST_F(ShortLists, HardInputs) { hard_inputs(26, runnable_isas()); }

TEST_F(ShortLists, RowsOfIntegersDoTheSame) {
  const cpu::Kernels table = with_plain_narrow(*cpu::portable_kernels());
  cpu::tiles_stand_in = &table;
  run_out_of_room({Isa::amx});
  keep_all({Isa::amx});
  if (!slow_build()) keep_few({Isa::amx});
  hard_inputs(27, {Isa::amx});
}

}  // namespace
}  // namespace dosa::test
