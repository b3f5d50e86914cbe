// What `dosa explain --backend cuda` tells, from the counters of a device that need not be there: selections of the CPU
// under the same score model, which are the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "contract/window.hpp"
#include "device_explanation.hpp"
#include "dosa/trace.hpp"

namespace dosa::app {
namespace {

constexpr std::int64_t kTopK = 256;

Options sm90_options() {
  Options options;
  options.top_k = kTopK;
  options.model = ScoreModel::sm90;
  options.backend = Backend::cpu;
  options.scores = true;
  return options;
}

const Trace& sample() {
  static const Trace kSample = Trace::open(DOSA_SOURCE_DIR "/data/sample_en_l03_h32.safetensors");
  return kSample;
}

Call call_with(const Problem& problem, const DeviceCounters& counters) {
  Call call = call_engine(problem, sm90_options(), "");
  call.selection.stats.device = counters;
  return call;
}

std::vector<std::int64_t> all_rows(const Problem& problem) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(problem.q.shape[0]));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

struct Told {
  std::string table, picture;
  Json json;
};
Told tell(const DeviceExplanation& e) {
  Table table("test");
  Told told;
  describe_device(e, table, told.json);
  told.table = table.text();
  told.picture = device_explanation_svg(e);
  return told;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A view of the sample's rows with windows of its own.
struct Windows {
  std::vector<std::int32_t> ks, ke;
  [[nodiscard]] Problem of_sample() {
    const auto rows = static_cast<std::int64_t>(ks.size());
    Problem problem = slice_rows(sample().problem(), 0, rows);
    problem.ks = TensorView<const std::int32_t, 1>::contiguous(ks.data(), {rows});
    problem.ke = TensorView<const std::int32_t, 1>::contiguous(ke.data(), {rows});
    return problem;
  }
};

TEST(DeviceExplanation, CountsTheKeysOfTheCall) {
  const Problem& problem = sample().problem();
  const DeviceCounters counters{20000, 7, 2, 30, 640, 3, 0};
  const DeviceExplanation e = explain_device("sample", problem, call_with(problem, counters), all_rows(problem));
  std::int64_t visible = 0;
  for (std::int64_t t = 0; t < problem.q.shape[0]; ++t)
    visible += window_of(*problem.ks.at(t), *problem.ke.at(t), e.shape.keys).size();
  EXPECT_EQ(e.visible, visible);
  EXPECT_EQ(e.call_visible, visible);
  EXPECT_EQ(e.selected, 32 * kTopK);
  EXPECT_EQ(e.call_selected, 32 * kTopK);
  EXPECT_EQ(e.whole_rows, 0);
  const auto bins = static_cast<std::int64_t>(e.bins.size());
  std::vector<double> wanted(e.bins.size());  // key by key
  for (std::int64_t t = 0; t < problem.q.shape[0]; ++t) {
    const Window window = window_of(*problem.ks.at(t), *problem.ke.at(t), e.shape.keys);
    for (std::int64_t key = window.first; key < window.last; ++key)
      wanted[static_cast<std::size_t>(key * bins / e.shape.keys)] += 1;
  }
  double seen = 0, won = 0;
  for (std::size_t b = 0; b < e.bins.size(); ++b) {
    EXPECT_EQ(e.bins[b].visible, wanted[b]) << b;
    EXPECT_LE(e.bins[b].winners, e.bins[b].visible) << b;
    seen += e.bins[b].visible;
    won += e.bins[b].winners;
  }
  EXPECT_EQ(seen, static_cast<double>(visible));
  EXPECT_EQ(won, static_cast<double>(e.selected));
}

TEST(DeviceExplanation, TheLastScoreIsTheKthLargest) {
  const Problem& problem = sample().problem();
  const DeviceExplanation e = explain_device("sample", problem, call_with(problem, {}), all_rows(problem));
  const auto keys = static_cast<std::size_t>(e.shape.keys);
  std::vector<float> all(static_cast<std::size_t>(e.shape.rows) * keys);
  scores(problem, sm90_options(), TensorView<float, 2>::contiguous(all.data(), {e.shape.rows, e.shape.keys}));
  ASSERT_EQ(e.last_scores.size(), static_cast<std::size_t>(e.shape.rows));
  for (std::size_t t = 0; t < e.last_scores.size(); ++t) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(t * keys);
    std::nth_element(first, first + (kTopK - 1), first + static_cast<std::ptrdiff_t>(keys), std::greater<>());
    EXPECT_EQ(e.last_scores[t], static_cast<double>(first[kTopK - 1])) << t;
  }
}

TEST(DeviceExplanation, TheTableTellsTheCounters) {
  const Problem& problem = sample().problem();
  const Told told =
      tell(explain_device("sample", problem, call_with(problem, {20480, 7, 2, 30, 640, 3, 0}), all_rows(problem)));
  for (const char* part : {"32 dense", "20,480 of ", "8,192 of them selected", "2.50 candidates a selected key",
                           "7 compactions", "30 of 32 predicted", "2 too high, and", "640 by the tensor copy engine",
                           "3 by ordinary copies", "last score", "none on this backend yet", "--backend cpu"}) {
    EXPECT_TRUE(says(told.table, part)) << part << "\n" << told.table;
  }
  EXPECT_FALSE(says(told.table, "status")) << told.table;
  EXPECT_FALSE(says(told.table, "does not count by row")) << told.table;
  EXPECT_EQ(told.json["device"]["candidates"], 20480);
  EXPECT_EQ(told.json["device"]["stages_plain"], 3);
  EXPECT_EQ(told.json["call"]["selected"], 8192);
  EXPECT_EQ(told.json["kth_score"]["count"], 32);
  EXPECT_TRUE(told.json["certificate"].is_null());
  for (const char* part : {"keys of 32 rows", ">2.50<", ">20,480<", ">8,192<", "of 30 with a predicted threshold",
                           "No certificate", "</svg>"}) {
    EXPECT_TRUE(says(told.picture, part)) << part;
  }
}

TEST(DeviceExplanation, OneRowIsLookedAtAndTheCallIsCounted) {
  const Problem& problem = sample().problem();
  const std::int64_t rows[] = {20};
  const DeviceExplanation e = explain_device("sample", problem, call_with(problem, {20480, 7, 2, 30, 640, 3, 0}), rows);
  EXPECT_EQ(e.visible, window_of(*problem.ks.at(20), *problem.ke.at(20), e.shape.keys).size());
  EXPECT_EQ(e.selected, kTopK);
  EXPECT_EQ(e.call_selected, 32 * kTopK);
  EXPECT_EQ(e.last_scores.size(), 1U);
  const Told told = tell(e);
  for (const char* part : {"20: ", "256 selected", "over all 32 rows: the device does not count by row", "20,480 of "})
    EXPECT_TRUE(says(told.table, part)) << part << "\n" << told.table;
  EXPECT_TRUE(says(told.picture, "keys of row 20"));
}

TEST(DeviceExplanation, ShortAndEmptyRowsHaveNoLastScore) {
  Windows windows{{0, 100, 50, 0}, {static_cast<std::int32_t>(kTopK), 110, 20, 4000}};
  const Problem problem = windows.of_sample();
  const DeviceExplanation e = explain_device("sample", problem, call_with(problem, {}), all_rows(problem));
  EXPECT_EQ(e.whole_rows, 3);
  EXPECT_EQ(e.selected, kTopK + 10 + 0 + kTopK);
  EXPECT_EQ(e.last_scores.size(), 1U);
  EXPECT_TRUE(says(tell(e).table, "3 of them see no more than K keys"));
}

TEST(DeviceExplanation, NothingToSeeIsSaidAndDrawn) {
  for (Windows windows : {Windows{{7}, {7}}, Windows{{}, {}}}) {
    const Problem problem = windows.of_sample();
    Call call = call_engine(problem, sm90_options(), "");  // without counters: the device was never asked
    const Told told = tell(explain_device("sample", problem, call, all_rows(problem)));
    EXPECT_TRUE(says(told.table, "0 of 0 visible (row, key) pairs became candidates (-)")) << told.table;
    EXPECT_TRUE(says(told.picture, "no key is visible"));
    for (const char* part : {"nan", "inf"}) EXPECT_FALSE(says(told.picture, part)) << part;
    EXPECT_TRUE(told.json["kth_score"].is_null());
  }
}

TEST(DeviceExplanation, WhatTheDeviceFoundOutOfRangeIsNamed) {
  const Problem problem = slice_rows(sample().problem(), 0, 2);
  const auto table = [&](std::uint64_t status) {
    return tell(explain_device("sample", problem, call_with(problem, {0, 0, 0, 0, 0, 0, status}), all_rows(problem)))
        .table;
  };
  EXPECT_TRUE(says(table(1), "row_request out of range") && !says(table(1), "page out of range"));
  EXPECT_TRUE(says(table(2), "page out of range") && !says(table(2), "row_request out of range"));
}

TEST(DeviceExplanation, BatchesAddUp) {
  Stats total, part;
  add(total, part);
  EXPECT_FALSE(total.device.has_value());
  part.device = DeviceCounters{1, 2, 3, 4, 5, 6, 1};
  add(total, part);
  part.device = DeviceCounters{10, 20, 30, 40, 50, 60, 2};
  add(total, part);
  part.device.reset();
  add(total, part);
  ASSERT_TRUE(total.device.has_value());
  const DeviceCounters& sum = *total.device;
  EXPECT_EQ(sum.candidates, 11U);
  EXPECT_EQ(sum.compactions, 22U);
  EXPECT_EQ(sum.repeats, 33U);
  EXPECT_EQ(sum.sampled_rows, 44U);
  EXPECT_EQ(sum.stages_tma, 55U);
  EXPECT_EQ(sum.stages_plain, 66U);
  EXPECT_EQ(sum.status, 3U);
}

}  // namespace
}  // namespace dosa::app
