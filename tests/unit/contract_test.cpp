// The contract, rule by rule, with answers worked out by hand or by the oracle, for the reference and the CPU backend.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "dosa/dosa.hpp"
#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// One row over keys of the given scores (exact under both models).
workloads::Workload row_of(const std::vector<float>& wanted, std::int64_t rows = 1) {
  workloads::Builder builder({rows, static_cast<std::int64_t>(wanted.size()), 16, 32, 1, 4});
  builder.control(wanted, true);
  return builder.finish();
}

struct Both : testing::TestWithParam<std::tuple<Backend, ScoreModel>> {
  [[nodiscard]] Options options(std::int64_t top_k) const {
    Options options = top(top_k, std::get<0>(GetParam()));
    options.model = std::get<1>(GetParam());
    options.scores = true;
    return options;
  }
  /// Runs, holds the result against the oracle, returns it.
  static Result check(const Problem& problem, const Options& options, const std::string& what = "") {
    const Result found = run_guarded(problem, options, what);
    const auto bad = difference(expected(problem, options), found);
    EXPECT_EQ(bad, std::nullopt) << what << " " << describe(options);
    return found;
  }
};

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

TEST_P(Both, BestFirstTiesToTheSmallerIndexAndFill) {
  const auto workload = row_of({1, 3, 2, 3, -kInf, 3, kInf});
  Options asked = options(4);
  Result found = check(workload.problem, asked);
  EXPECT_EQ(found.indices, (Ints{1, 3, 5, 6}));
  EXPECT_EQ(found.scores, (Floats{3, 3, 3, kInf}));
  asked.order = Order::score;
  found = check(workload.problem, asked);
  EXPECT_EQ(found.indices, (Ints{6, 1, 3, 5}));
  asked.top_k = 9;
  found = check(workload.problem, asked);
  EXPECT_EQ(found.indices, (Ints{6, 1, 3, 5, 2, 0, 4, -1, -1}));
  EXPECT_EQ(found.lengths, (Ints{7}));
  EXPECT_EQ(found.scores, (Floats{kInf, 3, 3, 3, 2, 1, -kInf, -kInf, -kInf}));
  asked.top_k = 2;
  EXPECT_EQ(check(workload.problem, asked).indices, (Ints{6, 1}));
}

TEST_P(Both, NanIsNeverSelectedAndInfinitiesAre) {
  const auto workload = row_of({kNaN, -kInf, kNaN, kInf, 0.5F, kNaN});
  const Result found = check(workload.problem, options(5));
  EXPECT_EQ(found.indices, (Ints{1, 3, 4, -1, -1}));
  EXPECT_EQ(found.lengths, (Ints{3}));
  const auto nothing = row_of({kNaN, kNaN});
  const Result empty = check(nothing.problem, options(2));
  EXPECT_EQ(empty.indices, (Ints{-1, -1}));
  EXPECT_EQ(empty.lengths, (Ints{0}));
}

TEST_P(Both, ZerosOfBothSignsTieAndKeepTheirSign) {
  const auto workload = row_of({-0.0F, 0.0F, -1, -0.0F, 0.0F});
  Options asked = options(3);
  asked.order = Order::score;
  const Result found = check(workload.problem, asked);
  EXPECT_EQ(found.indices, (Ints{0, 1, 3}));
  EXPECT_TRUE(std::signbit(found.scores[0]));
  EXPECT_FALSE(std::signbit(found.scores[1]));
  EXPECT_TRUE(std::signbit(found.scores[2]));
}

TEST_P(Both, ForcedKeysRankFirstWhateverTheirScore) {
  const auto workload = row_of({kNaN, -kInf, 5, 1, 4, kNaN, 3, -kInf, 2});
  Options asked = options(5);
  asked.order = Order::score;
  asked.always_first = 2;
  asked.always_last = 1;
  Result found = check(workload.problem, asked);
  EXPECT_EQ(found.indices, (Ints{0, 1, 8, 2, 4}));
  EXPECT_EQ(found.scores, (Floats{kInf, kInf, kInf, 5, 4}));
  asked.order = Order::index;
  EXPECT_EQ(check(workload.problem, asked).indices, (Ints{0, 1, 2, 4, 8}));
  asked.top_k = 2;  // more forced keys than K: the first K by index
  EXPECT_EQ(check(workload.problem, asked).indices, (Ints{0, 1}));
  asked.always_first = 1;
  EXPECT_EQ(check(workload.problem, asked).indices, (Ints{0, 8}));
  asked.always_first = asked.always_last = 6;  // overlapping: all keys, each once
  asked.top_k = 12;
  found = check(workload.problem, asked);
  EXPECT_EQ(found.lengths, (Ints{9}));
  EXPECT_EQ(found.indices, (Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1}));
  asked.always_first = std::numeric_limits<std::int64_t>::max();
  asked.always_last = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(check(workload.problem, asked).lengths, (Ints{9}));
}

TEST_P(Both, ForcedKeysOfEveryCombination) {
  const auto workload = row_of({2, kNaN, 7, -kInf, 7, 1, kInf, kNaN, 0, 3, 7});
  for (const Order order : {Order::index, Order::score}) {
    for (std::int64_t first = 0; first < 13; first += 1) {
      for (std::int64_t last = 0; last < 13; ++last) {
        for (const std::int64_t top_k : {1, 3, 8, 11, 12}) {
          Options asked = options(top_k);
          asked.order = order;
          asked.always_first = first;
          asked.always_last = last;
          check(workload.problem, asked);
        }
      }
    }
  }
}

TEST_P(Both, WindowsClipAndIndexBasesCount) {
  auto workload = row_of({9, 8, 7, 6, 5, 4}, 8);
  const Ints ks{-7, 2, 4, 6, 3, 0, std::numeric_limits<std::int32_t>::min(), 5},
      ke{3, 5, 99, 99, 3, -1, std::numeric_limits<std::int32_t>::max(), 2};
  Problem problem = workload.problem;
  problem.ks.data = ks.data();
  problem.ke.data = ke.data();
  Options asked = options(2);
  Result found = check(problem, asked);
  EXPECT_EQ(found.indices, (Ints{0, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1, -1, 0, 1, -1, -1}));
  EXPECT_EQ(found.lengths, (Ints{2, 2, 2, 0, 0, 0, 2, 0}));
  asked.index_base = IndexBase::window;
  found = check(problem, asked);
  EXPECT_EQ(found.indices, (Ints{0, 1, 0, 1, 0, 1, -1, -1, -1, -1, -1, -1, 0, 1, -1, -1}));
  asked.always_last = 1;
  EXPECT_EQ(check(problem, asked).indices, (Ints{0, 2, 0, 2, 0, 1, -1, -1, -1, -1, -1, -1, 0, 5, -1, -1}));
}

TEST_P(Both, SlotsNameThePhysicalPlace) {
  const auto contiguous = row_of({1, 2, 3, 4, 5, 6, 7, 8, 9});
  for (const std::int32_t page : {1, 2, 4, 8}) {
    const auto workload = workloads::paged(contiguous, page, 12, true, 3);
    const auto& keys = std::get<PagedKeys>(workload.problem.keys);
    Options asked = options(3);
    asked.order = Order::score;
    asked.index_base = IndexBase::slot;
    const Result found = check(workload.problem, asked);
    const auto slot = [&](std::int32_t key) { return *keys.block_table.at(0, key / page) * page + key % page; };
    EXPECT_EQ(found.indices, (Ints{slot(8), slot(7), slot(6)}));
    asked.order = Order::index;  // by logical index, whatever the slots
    EXPECT_EQ(check(workload.problem, asked).indices, (Ints{slot(6), slot(7), slot(8)}));
    asked.index_base = IndexBase::absolute;
    EXPECT_EQ(check(workload.problem, asked).indices, (Ints{6, 7, 8}));
  }
}

TEST_P(Both, EmptyProblems) {
  for (const std::int64_t rows : {0, 1, 3}) {
    for (const std::int64_t keys : {0, 1, 5}) {
      if (rows > 0 && keys > 0) continue;
      const std::vector<std::uint8_t> codes(1024, 0x38);
      const std::vector<float> floats(64, 1.0F);
      const Ints zeros(8, 0), ends(8, 7);
      Problem problem;
      problem.q = TensorView<const std::uint8_t, 3>::contiguous(codes.data(), {rows, 4, 32});
      problem.weights = TensorView<const float, 2>::contiguous(floats.data(), {rows, 4});
      problem.keys = ContiguousKeys{TensorView<const std::uint8_t, 2>::contiguous(codes.data(), {keys, 32}),
                                    TensorView<const float, 1>::contiguous(floats.data(), {keys})};
      problem.ks = TensorView<const std::int32_t, 1>::contiguous(zeros.data(), {rows});
      problem.ke = TensorView<const std::int32_t, 1>::contiguous(ends.data(), {rows});
      const Result found = check(problem, options(3));
      EXPECT_EQ(found.lengths, Ints(static_cast<std::size_t>(rows), 0));
      EXPECT_EQ(found.indices, Ints(static_cast<std::size_t>(rows * 3), -1));
    }
  }
}

TEST_P(Both, EveryTopKAroundTheWindow) {
  for (const std::int64_t keys : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 500}) {
    const auto workload = workloads::make(workloads::find("codes_uniform"), {2, keys, 5, 32, 1, 8});
    for (const std::int64_t top_k : {std::int64_t{1}, std::int64_t{2}, keys - 1, keys, keys + 1, 4 * keys}) {
      if (top_k >= 1) check(workload.problem, options(top_k), std::to_string(keys));
    }
  }
}

TEST_P(Both, ScoresAreTheModelsScores) {
  for (const char* name :
       {"scales_special", "codes_nan_keys", "windows_hostile", "shared_pages", "relu_plateau_signed"}) {
    const auto workload = workloads::make(workloads::find(name), {5, 333, 9, 64, 10, 3});
    const Options asked = options(1);
    const ScoreTable table(workload.problem, asked.model);
    const std::int64_t rows = workload.problem.q.shape[0], keys = keys_of(workload.problem);
    std::vector<float> out(static_cast<std::size_t>(rows * (keys + 2)), 77.0F);
    TensorView<float, 2> view{out.data(), {rows, keys}, {keys + 2, 1}, {}};
    scores(workload.problem, asked, view);
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t first = std::max(*workload.problem.ks.at(t), 0);
      const std::int64_t last = std::min<std::int64_t>(*workload.problem.ke.at(t), keys);
      for (std::int64_t i = 0; i < keys; ++i) {
        const float found = *view.at(t, i);
        const float wanted =
            i >= first && i<last&& * workload.problem.ke.at(t)> * workload.problem.ks.at(t) ? table.at(t, i) : -kInf;
        if (std::isnan(wanted)) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(found), 0x7fffffffU) << name << " row " << t << " key " << i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(wanted))
              << name << " row " << t << " key " << i;
        }
      }
      EXPECT_EQ(view.data[t * view.strides[0] + keys], 77.0F) << "behind row " << t;
    }
  }
}

TEST_P(Both, WorkspaceMayHoldAnythingAndLieAnywhere) {
  const auto workload = workloads::make(workloads::find("indexer_like"), {3, 1500, 16, 64, 40, 3});
  const Options asked = options(40);
  const Result wanted = expected(workload.problem, asked);
  for (const int fill : {0x00, 0xff, 0x7f, 0xcd}) {
    for (const std::size_t offset : {0U, 1U, 3U, 32U, 63U}) {
      for (const auto side : {GuardedBuffer::Side::begin, GuardedBuffer::Side::end}) {
        const Result found = run_guarded(workload.problem, asked, "workspace",
                                         {side, offset, static_cast<std::uint8_t>(fill), 5, nullptr});
        EXPECT_EQ(difference(wanted, found), std::nullopt) << fill << " " << offset;
      }
    }
  }
}

TEST_P(Both, CarryIsNeverTrusted) {
  const auto workload = workloads::make(workloads::find("indexer_like"), {4, 1700, 16, 64, 50, 3});
  const auto other = workloads::make(workloads::find("seeds_mislead"), {4, 1700, 16, 64, 50, 4});
  const Options asked = options(50);
  const Result wanted = expected(workload.problem, asked);
  const std::size_t bytes = plan(shape_of(workload.problem), asked).carry_bytes();
  workloads::Random random(17);
  for (int round = 0; round < 24; ++round) {
    std::vector<std::byte> carry(bytes + static_cast<std::size_t>(round % 5));
    for (std::byte& b : carry) {
      switch (round % 4) {
        case 0:
          b = static_cast<std::byte>(random.bits());
          break;
        case 1:
          b = std::byte{0xff};
          break;
        case 2:
          b = std::byte{0x7f};
          break;
        default:
          break;  // zeros
      }
    }
    if (round % 4 == 3) {
      // What another problem left behind, then damaged in places.
      static_cast<void>(run_guarded(other.problem, asked, "other", {.carry = &carry}));
      for (int hit = 0; hit < round && !carry.empty(); ++hit)
        carry[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(carry.size())))] =
            static_cast<std::byte>(random.bits());
    }
    Surroundings around;
    around.carry = &carry;
    for (int call = 0; call < 3; ++call)  // the carry of one call is the next call's input
      EXPECT_EQ(difference(wanted, run_guarded(workload.problem, asked, "carry", around)), std::nullopt)
          << round << " call " << call;
  }
}

TEST_P(Both, SelectReturnsWhatRunWrites) {
  const auto workload = workloads::make(workloads::find("mixed_batch"), {9, 400, 4, 32, 30, 3});
  Options asked = options(30);
  const OwnedSelection owned = select(workload.problem, asked);
  const Result found{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
  EXPECT_EQ(difference(expected(workload.problem, asked), found), std::nullopt);
  EXPECT_EQ(owned.stats.rows, owned.rows);
  EXPECT_GE(owned.stats.dense_dot_products, 0);
  asked.scores = false;
  EXPECT_TRUE(select(workload.problem, asked).scores.empty());
}

TEST_P(Both, StatsCountEveryRow) {
  const auto workload = workloads::make(workloads::find("indexer_like"), {6, 2500, 16, 64, 60, 3});
  Stats stats;
  stats.row_reports.resize(6);
  static_cast<void>(run_guarded(workload.problem, options(60), "stats", {}, &stats));
  EXPECT_EQ(stats.rows, 6);
  EXPECT_EQ(stats.rows_dense + stats.rows_dosa + stats.rows_model, 6);
  std::int64_t visible = 0, survivors = 0;
  for (const RowReport& report : stats.row_reports) {
    visible += report.visible;
    survivors += report.survivors;
    EXPECT_LE(report.exact, report.visible);
  }
  EXPECT_EQ(stats.visible, visible);
  EXPECT_EQ(stats.survivors, survivors);
  EXPECT_EQ(visible, 2500 * 6 - 15);
}

TEST_P(Both, NegativeStridesAreViewsLikeAnyOther) {
  const auto workload = workloads::make(workloads::find("codes_normal"), {4, 200, 6, 32, 20, 3});
  Problem reversed = workload.problem;
  reversed.q.data = workload.problem.q.at(3);
  reversed.q.strides[0] = -reversed.q.strides[0];
  reversed.weights.data = workload.problem.weights.at(3);
  reversed.weights.strides[0] = -reversed.weights.strides[0];
  auto& keys = std::get<ContiguousKeys>(reversed.keys);
  keys.codes.data = keys.codes.at(199);
  keys.codes.strides[0] = -keys.codes.strides[0];
  keys.scales.data = keys.scales.at(199);
  keys.scales.strides[0] = -1;
  const Options asked = options(20);
  const OwnedSelection owned = select(reversed, asked);
  const Result found{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
  EXPECT_EQ(difference(expected(reversed, asked), found), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Contract, Both,
                         testing::Combine(testing::Values(Backend::reference, Backend::cpu),
                                          testing::Values(ScoreModel::f64, ScoreModel::sm90)),
                         [](const auto& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) + "_" +
                                  std::string(name(std::get<1>(parameters.param)));
                         });

}  // namespace
}  // namespace dosa::test
