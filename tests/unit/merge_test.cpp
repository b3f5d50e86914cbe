// Shards of one row merged in the total order equal the whole, however the keys are split.
#include "dosa/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/errors.hpp"
#include "support/oracle.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The keys first .. first+count-1 of a contiguous problem.
Problem slice(const Problem& whole, std::int64_t first, std::int64_t count) {
  Problem part = whole;
  auto& keys = std::get<ContiguousKeys>(part.keys);
  keys.codes.data += first * keys.codes.strides[0];
  keys.codes.shape[0] = count;
  keys.scales.data += first * keys.scales.strides[0];
  keys.scales.shape[0] = count;
  return part;
}

Partial partial_of(const OwnedSelection& owned) {
  return {TensorView<const std::int32_t, 2>::contiguous(owned.indices.data(), {owned.rows, owned.top_k}),
          TensorView<const std::int32_t, 1>::contiguous(owned.lengths.data(), {owned.rows}),
          TensorView<const float, 2>::contiguous(owned.scores.data(), {owned.rows, owned.top_k})};
}

Result merged(const std::vector<OwnedSelection>& parts, const Problem& problem, const Options& options,
              std::int64_t total, const PagedKeys* paged = nullptr) {
  std::vector<Partial> partials;
  for (const OwnedSelection& part : parts) partials.push_back(partial_of(part));
  const std::int64_t rows = problem.ks.shape[0];
  Result result{rows, options.top_k, {}, {}, {}};
  result.indices.assign(static_cast<std::size_t>(rows * options.top_k), 77);
  result.lengths.assign(static_cast<std::size_t>(rows), 77);
  if (options.scores) result.scores.assign(result.indices.size(), 77);
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(result.indices.data(), {rows, options.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(result.lengths.data(), {rows});
  if (options.scores) selection.scores = TensorView<float, 2>::contiguous(result.scores.data(), {rows, options.top_k});
  merge(partials, problem.ks, problem.ke, total, options, selection, paged, problem.row_request);
  return result;
}

void check_split(const workloads::Workload& workload, const Options& whole, std::vector<std::int64_t> cuts) {
  const std::int64_t total = keys_of(workload.problem);
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(total);
  std::vector<OwnedSelection> parts;
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
    Options part = whole;
    part.scores = true;
    part.index_base = IndexBase::absolute;
    part.order = p % 2 == 0 ? Order::index : Order::score;
    part.shard = Shard{cuts[p], total};
    const Problem problem = slice(workload.problem, cuts[p], cuts[p + 1] - cuts[p]);
    parts.push_back(select(problem, part));
    const OwnedSelection& owned = parts.back();
    EXPECT_EQ(difference(expected(problem, part),
                         Result{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores}),
              std::nullopt)
        << workload.name << " part " << p << " " << describe(part);
  }
  std::rotate(parts.begin(), parts.begin() + 1, parts.end());  // the order of the parts plays no part
  EXPECT_EQ(difference(expected(workload.problem, whole), merged(parts, workload.problem, whole, total)), std::nullopt)
      << workload.name << " in " << parts.size() << " parts " << describe(whole);
}

TEST(Merge, ShardsEqualTheWhole) {
  workloads::Random random(11);
  int round = 0;
  for (const char* name : {"codes_normal", "few_values_3", "relu_plateau_signed", "nan_most", "both_inf",
                           "windows_hostile", "mixed_batch", "scales_special", "all_equal"}) {
    const auto workload = workloads::make(workloads::find(name), {5, 430, 6, 32, 37, 3});
    for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
      std::vector<std::int64_t> cuts;
      for (std::int64_t r = 1; r < ranks; ++r) cuts.push_back(random.below(431));  // uneven, some empty
      std::sort(cuts.begin(), cuts.end());
      Options whole = top(37, ++round % 3 == 0 ? Backend::reference : Backend::cpu);
      whole.model = round % 2 == 0 ? ScoreModel::f64 : ScoreModel::sm90;
      whole.order = round % 3 == 0 ? Order::score : Order::index;
      whole.index_base = round % 4 < 2 ? IndexBase::absolute : IndexBase::window;
      whole.scores = round % 5 != 0;
      whole.always_first = round % 4 == 0 ? 3 : 0;
      whole.always_last = round % 7 < 2 ? 20 : 0;
      check_split(workload, whole, cuts);
    }
  }
}

TEST(Merge, MoreForcedKeysThanSlots) {
  const auto workload = workloads::make(workloads::find("codes_normal"), {5, 100, 6, 32, 8, 3});
  for (const std::int64_t first : {0, 5, 8, 20}) {
    for (const std::int64_t last : {1, 8, 99, 200}) {
      Options whole = top(8, Backend::reference);
      whole.always_first = first;
      whole.always_last = last;
      whole.scores = true;
      check_split(workload, whole, {7, 50, 97});
    }
  }
}

/// Round robin and zigzag over ranks: each rank holds many stretches; their selections are merged a second time.
TEST(Merge, RoundRobinAndZigzagRanks) {
  const auto workload = workloads::make(workloads::find("few_values_50"), {4, 512, 6, 32, 41, 3});
  const std::int64_t total = 512, chunk = 32;
  for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (const bool zigzag : {false, true}) {
      Options whole = top(41, Backend::reference);
      whole.scores = true;
      whole.always_first = 2;
      std::vector<std::vector<OwnedSelection>> of_rank(static_cast<std::size_t>(ranks));
      for (std::int64_t c = 0; c < total / chunk; ++c) {
        Options part = whole;
        part.shard = Shard{c * chunk, total};
        const std::int64_t turn = c / ranks, place = c % ranks;
        const std::int64_t rank = zigzag && turn % 2 == 1 ? ranks - 1 - place : place;
        of_rank[static_cast<std::size_t>(rank)].push_back(select(slice(workload.problem, c * chunk, chunk), part));
      }
      std::vector<OwnedSelection> ranks_merged;
      for (const auto& parts : of_rank) {
        const Result result = merged(parts, workload.problem, whole, total);
        OwnedSelection owned;
        owned.rows = result.rows;
        owned.top_k = result.top_k;
        owned.indices = result.indices;
        owned.lengths = result.lengths;
        owned.scores = result.scores;
        ranks_merged.push_back(owned);
      }
      EXPECT_EQ(difference(expected(workload.problem, whole), merged(ranks_merged, workload.problem, whole, total)),
                std::nullopt)
          << ranks << " ranks";
    }
  }
}

TEST(Merge, SlotsOfPagedShards) {
  const auto contiguous = workloads::make(workloads::find("few_values_50"), {4, 256, 6, 32, 30, 3});
  const auto workload = workloads::paged(contiguous, 16, 8, true, 6);
  Options whole = top(30, Backend::reference);
  whole.index_base = IndexBase::slot;
  whole.scores = true;
  std::vector<OwnedSelection> parts;
  for (std::int64_t page = 0; page < 16; page += 5) {
    Options part = whole;
    part.index_base = IndexBase::absolute;
    part.shard = Shard{page * 16, 256};
    Problem problem = workload.problem;
    auto& table = std::get<PagedKeys>(problem.keys).block_table;
    table.data += page;
    table.shape[1] = std::min<std::int64_t>(5, 16 - page);
    parts.push_back(select(problem, part));
  }
  const auto& paged = std::get<PagedKeys>(workload.problem.keys);
  EXPECT_EQ(difference(expected(workload.problem, whole), merged(parts, workload.problem, whole, 256, &paged)),
            std::nullopt);
}

TEST(Merge, SlotsAreLookedUpNowhereElse) {
  const auto contiguous = workloads::make(workloads::find("few_values_50"), {4, 64, 6, 32, 10, 3});
  const auto workload = workloads::paged(contiguous, 16, 0, true, 6);
  Options whole = top(10);
  whole.scores = true;
  const std::vector<OwnedSelection> parts{select(workload.problem, whole)};
  whole.index_base = IndexBase::slot;
  const auto refuse = [&](const std::vector<std::string>& words, auto breakage) {
    PagedKeys paged = std::get<PagedKeys>(workload.problem.keys);
    Problem problem = workload.problem;
    breakage(paged, problem);
    expect_error(ErrorKind::bad_input, words, [&] { static_cast<void>(merged(parts, problem, whole, 64, &paged)); });
  };
  const std::vector<std::int32_t> wild{0, 0, -1, 0}, beyond{0, 0, 0, 1}, invalid(4, 99);
  refuse({"row 2", "request -1"}, [&](PagedKeys&, Problem& p) {
    p.row_request = TensorView<const std::int32_t, 1>::contiguous(wild.data(), {4});
  });
  refuse({"row 3", "request 1"}, [&](PagedKeys&, Problem& p) {
    p.row_request = TensorView<const std::int32_t, 1>::contiguous(beyond.data(), {4});
  });
  refuse({"row_request", "3 rows"}, [&](PagedKeys&, Problem& p) {
    p.row_request = TensorView<const std::int32_t, 1>::contiguous(beyond.data(), {3});
  });
  refuse({"page 99"}, [&](PagedKeys& k, Problem&) { k.block_table.data = invalid.data(); });
  refuse({"3 columns", "64 keys"}, [&](PagedKeys& k, Problem&) { k.block_table.shape[1] = 3; });
  refuse({"block_table", "null"}, [&](PagedKeys& k, Problem&) { k.block_table.data = nullptr; });
  expect_error(ErrorKind::usage, {"slot"}, [&] { static_cast<void>(merged(parts, workload.problem, whole, 64)); });
}

TEST(Merge, ARefusalWritesNothing) {
  const auto workload = workloads::make(workloads::find("codes_normal"), {3, 50, 4, 32, 6, 3});
  Options whole = top(6);
  whole.scores = true;
  OwnedSelection part = select(workload.problem, whole);
  part.indices.back() = 50;  // the last slot of the last row
  const std::vector<Partial> parts{partial_of(part)};
  std::vector<std::int32_t> indices(18, 77), lengths(3, 77);
  std::vector<float> scores(18, 77);
  const Selection selection{TensorView<std::int32_t, 2>::contiguous(indices.data(), {3, 6}),
                            TensorView<std::int32_t, 1>::contiguous(lengths.data(), {3}),
                            TensorView<float, 2>::contiguous(scores.data(), {3, 6})};
  expect_error(ErrorKind::bad_input, {"index 50"},
               [&] { merge(parts, workload.problem.ks, workload.problem.ke, 50, whole, selection); });
  EXPECT_EQ(indices, std::vector<std::int32_t>(18, 77));
  EXPECT_EQ(lengths, std::vector<std::int32_t>(3, 77));
  EXPECT_EQ(scores, std::vector<float>(18, 77));
}

TEST(Merge, NoParts) {
  const auto workload = workloads::make(workloads::find("codes_normal"), {3, 50, 4, 32, 6, 3});
  const Result result = merged({}, workload.problem, top(6), 50);
  EXPECT_EQ(result.lengths, std::vector<std::int32_t>(3, 0));
  EXPECT_EQ(result.indices, std::vector<std::int32_t>(18, -1));
}

/// Two parts of one row, written by hand.
struct Hand {
  std::vector<std::int32_t> ks{0}, ke{10}, length_a{2}, length_b{2};
  std::vector<std::int32_t> index_a{1, 3}, index_b{7, 5};
  std::vector<float> score_a{2, 1}, score_b{2, -kInf};
  std::vector<std::int32_t> indices{77, 77, 77}, lengths{77};
  std::vector<float> scores{77, 77, 77};
  Options options = top(3);
  std::int64_t total = 10;
  std::vector<Partial> parts;

  Hand() { options.scores = true; }
  void run() {
    parts = {
        {TensorView<const std::int32_t, 2>::contiguous(index_a.data(), {1, static_cast<std::int64_t>(index_a.size())}),
         TensorView<const std::int32_t, 1>::contiguous(length_a.data(), {1}),
         TensorView<const float, 2>::contiguous(score_a.data(), {1, static_cast<std::int64_t>(score_a.size())})},
        {TensorView<const std::int32_t, 2>::contiguous(index_b.data(), {1, static_cast<std::int64_t>(index_b.size())}),
         TensorView<const std::int32_t, 1>::contiguous(length_b.data(), {1}),
         TensorView<const float, 2>::contiguous(score_b.data(), {1, static_cast<std::int64_t>(score_b.size())})}};
    Selection selection;
    selection.indices =
        TensorView<std::int32_t, 2>::contiguous(indices.data(), {1, static_cast<std::int64_t>(indices.size())});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {1});
    if (options.scores)
      selection.scores = TensorView<float, 2>::contiguous(scores.data(), {1, static_cast<std::int64_t>(scores.size())});
    merge(parts, TensorView<const std::int32_t, 1>::contiguous(ks.data(), {1}),
          TensorView<const std::int32_t, 1>::contiguous(ke.data(), {static_cast<std::int64_t>(ke.size())}), total,
          options, selection);
  }
};

TEST(Merge, ByHand) {
  Hand hand;
  hand.options.order = Order::score;
  hand.run();
  EXPECT_EQ(hand.indices, (std::vector<std::int32_t>{1, 7, 3}));
  EXPECT_EQ(hand.scores, (std::vector<float>{2, 2, 1}));
  Hand forced;  // key 9 is forced but no shard holds it; key 5 is forced by always_last = 5
  forced.options.order = Order::score;
  forced.options.always_last = 5;
  forced.run();
  EXPECT_EQ(forced.indices, (std::vector<std::int32_t>{5, 7, 1}));
  EXPECT_EQ(forced.scores, (std::vector<float>{kInf, kInf, 2}));
}

TEST(Merge, RefusesWhatNoShardCanHaveReturned) {
  const auto refuse = [](const std::vector<std::string>& words, auto breakage) {
    Hand hand;
    breakage(hand);
    expect_error(ErrorKind::bad_input, words, [&] { hand.run(); });
  };
  refuse({"index 10", "window"}, [](Hand& h) { h.index_b[0] = 10; });
  refuse({"index -1", "window"}, [](Hand& h) { h.index_b[1] = -1; });
  refuse({"index 1", "0..0"}, [](Hand& h) { h.ke[0] = 1; });
  refuse({"index 3", "two places"}, [](Hand& h) { h.index_b[0] = 3; });
  refuse({"NaN"}, [](Hand& h) { h.score_a[1] = std::numeric_limits<float>::quiet_NaN(); });
  refuse({"length 3", "0..2"}, [](Hand& h) { h.length_a[0] = 3; });
  refuse({"length -1", "0..2"}, [](Hand& h) { h.length_b[0] = -1; });
  refuse({"ke", "2 rows"}, [](Hand& h) { h.ke.push_back(3); });
  refuse({"part 1"}, [](Hand& h) { h.score_b.push_back(1); });
  refuse({"indices"}, [](Hand& h) { h.indices.push_back(1); });
  Hand hand;
  hand.options.top_k = 0;
  expect_error(ErrorKind::usage, {"top_k"}, [&] { hand.run(); });
}

}  // namespace
}  // namespace dosa::test
