#include "device_explanation.hpp"

#include <algorithm>
#include <limits>

#include "contract/text.hpp"
#include "contract/window.hpp"
#include "distribution.hpp"
#include "report.hpp"

namespace dosa::app {
namespace {

std::string count_of(std::uint64_t value) { return human_count(static_cast<double>(value)); }
std::string count_of(std::int64_t value) { return human_count(static_cast<double>(value)); }

/// Visible keys of a window, bin by bin: bin b holds the keys i with i * kBins / keys == b.
void add_window(const Window& window, std::int64_t keys, std::vector<KeyBin>& bins) {
  const auto first_of = [keys](std::int64_t bin) { return (bin * keys + kBins - 1) / kBins; };
  for (std::int64_t b = 0; b < kBins; ++b) {
    const std::int64_t first = std::max(first_of(b), window.first), last = std::min(first_of(b + 1), window.last);
    if (last > first) bins[static_cast<std::size_t>(b)].visible += static_cast<double>(last - first);
  }
}

std::string ratio(std::uint64_t part, std::int64_t whole) {
  return whole > 0 ? text::format("{:.2f}", static_cast<double>(part) / static_cast<double>(whole)) : "-";
}

void describe_counters(const DeviceExplanation& e, Table& table) {
  const DeviceCounters& counters = e.counters;
  table.row("candidates",
            text::format("{} of {} visible (row, key) pairs became candidates ({}), {} of them selected",
                         count_of(counters.candidates), count_of(e.call_visible),
                         percent(static_cast<double>(counters.candidates), static_cast<double>(e.call_visible)),
                         count_of(e.call_selected)));
  table.row("", text::format("{} candidates a selected key; {} compactions, each of a full buffer to its best K",
                             ratio(counters.candidates, e.call_selected), count_of(counters.compactions)));
  table.row(
      "thresholds",
      text::format(
          "{} of {} predicted from a sample of the row's keys; {} too high, and these rows streamed again without",
          count_of(counters.sampled_rows), count_of(e.call_rows), count_of(counters.repeats)));
  table.row("key stages", text::format("{} by the tensor copy engine, {} by ordinary copies",
                                       count_of(counters.stages_tma), count_of(counters.stages_plain)));
  if ((counters.status & 1U) != 0) table.row("status", "a row_request out of range: that row is empty");
  if ((counters.status & 2U) != 0) table.row("status", "a visible page out of range: its keys cannot be selected");
}

}  // namespace

DeviceExplanation explain_device(const std::string& trace, const Problem& problem, const Call& call,
                                 std::span<const std::int64_t> rows) {
  const OwnedSelection& selection = call.selection;
  DeviceExplanation e;
  e.trace = trace;
  e.shape = shape_of(problem);
  e.options = call.options;
  e.rows.assign(rows.begin(), rows.end());
  e.counters = selection.stats.device.value_or(DeviceCounters{});
  e.call_rows = selection.rows;
  e.call_visible = selection.stats.visible;
  for (const std::int32_t length : selection.lengths) e.call_selected += length;
  e.bins.resize(kBins);
  for (const std::int64_t t : rows) {
    const Window window = window_of(*problem.ks.at(t), *problem.ke.at(t), e.shape.keys);
    const std::int64_t length = selection.lengths[static_cast<std::size_t>(t)];
    e.visible += window.size();
    e.selected += length;
    add_window(window, e.shape.keys, e.bins);
    float last = std::numeric_limits<float>::infinity();
    for (std::int64_t slot = t * selection.top_k; slot < t * selection.top_k + length; ++slot) {
      const std::int64_t key = selection.indices[static_cast<std::size_t>(slot)];
      e.bins[static_cast<std::size_t>(key * kBins / e.shape.keys)].winners += 1;
      last = std::min(last, selection.scores[static_cast<std::size_t>(slot)]);
    }
    if (window.size() <= selection.top_k) {
      ++e.whole_rows;
    } else if (length == selection.top_k) {
      e.last_scores.push_back(static_cast<double>(last));
    }
  }
  return e;
}

void describe_device(const DeviceExplanation& e, Table& table, Json& json) {
  table.row("rows", text::format("{} dense, the one path of this backend: every visible key is scored, with all heads",
                                 count_of(e.call_rows)));
  if (e.single()) {
    table.row("row", text::format("{}: {} visible keys, {} selected{}", e.rows[0], count_of(e.visible),
                                  count_of(e.selected), e.whole_rows > 0 ? " (no more than K are visible)" : ""));
  } else if (e.whole_rows > 0) {
    table.row("", text::format("{} of them see no more than K keys", count_of(e.whole_rows)));
  }
  describe_distribution("last score", "score of the K-th key, " + counted(std::ssize(e.last_scores), "row"),
                        e.last_scores, 0, table, json["kth_score"]);
  if (e.single() && e.call_rows > 1) {
    table.row("counted", text::format("over all {}: the device does not count by row", counted(e.call_rows, "row")));
  }
  describe_counters(e, table);
  table.row("certificate", "none on this backend yet: no upper bound, slack or tau gap, and no key is left unscored");
  table.row("", "--backend cpu --model sm90 shows what it rejects on the same scores");
  json["device"] = to_json(e.counters);
  json["call"] = {{"rows", e.call_rows}, {"visible", e.call_visible}, {"selected", e.call_selected}};
  json["rows_looked_at"] = e.rows.size();
  json["rows_whole"] = e.whole_rows;
  json["keys"] = e.visible;
  json["selected"] = e.selected;
  json["certificate"] = nullptr;
}

}  // namespace dosa::app
