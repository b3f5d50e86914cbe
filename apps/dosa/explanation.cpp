#include "explanation.hpp"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "call.hpp"
#include "contract/text.hpp"
#include "contract/window.hpp"
#include "cpu/row_work.hpp"

namespace dosa::app {
namespace {

constexpr double kMostPoints = 2e6;

/// Keeps the bounds that the engine screened the wanted rows with, until they are looked at.
class BoundCapture final : public cpu::RowObserver {
 public:
  BoundCapture(std::int64_t rows, std::span<const std::int64_t> wanted)
      : wanted_(static_cast<std::size_t>(rows)), bounds_(static_cast<std::size_t>(rows)) {
    for (const std::int64_t row : wanted) wanted_[static_cast<std::size_t>(row)] = 1;
    cpu::row_observer.store(this, std::memory_order_release);
  }
  BoundCapture(const BoundCapture&) = delete;
  BoundCapture& operator=(const BoundCapture&) = delete;
  ~BoundCapture() override { cpu::row_observer.store(nullptr, std::memory_order_release); }

  void screened(const cpu::RowWork& work) override {
    const auto row = static_cast<std::size_t>(batch_ + work.row.row);
    if (work.screen != cpu::Screen::dosa || wanted_[row] == 0) return;
    bounds_[row].assign(work.memory.upper, work.memory.upper + work.kept);
  }
  [[nodiscard]] bool wanted(std::int64_t row) const { return wanted_[static_cast<std::size_t>(row)] != 0; }
  [[nodiscard]] std::vector<float> take(std::int64_t row) { return std::move(bounds_[static_cast<std::size_t>(row)]); }
  void next_batch(std::int64_t first) { batch_ = first; }

 private:
  std::vector<char> wanted_;
  std::vector<std::vector<float>> bounds_;
  std::int64_t batch_ = 0;
};

KeyFate fate_of(const RowAnalysis& row, std::size_t i) {
  if (row.wins(i)) return KeyFate::winner;
  if (row.upper[i] < row.cut) return KeyFate::rejected;
  return row.upper[i] < row.threshold ? KeyFate::scouted : KeyFate::scored;
}

void fold(const RowAnalysis& row, Explanation& all) {
  const double n = static_cast<double>(row.score.size());
  const double heads = static_cast<double>(all.shape.heads);
  all.dense_dots += n * heads;
  if (row.report.path == Path::dosa) {
    const double retained = n * row.report.retained_heads, aggregate = n * row.report.aggregates;
    all.retained_dots += retained;
    all.aggregate_dots += aggregate;
    all.refinement_dots += row.report.dot_products - retained - aggregate;
  } else {
    all.retained_dots += std::min(row.report.dot_products, n * heads);
    all.refinement_dots += std::max(row.report.dot_products - n * heads, 0.0);
  }
  all.positive_heads.push_back(row.positive_heads);
  all.negative_heads.push_back(row.negative_heads);
  all.positive_active_winners.push_back(row.positive_active_winners);
  all.positive_active_others.push_back(row.positive_active_others);
  all.negative_active_winners.push_back(row.negative_active_winners);
  all.negative_active_others.push_back(row.negative_active_others);
  all.score_std.push_back(row.score_std);
  all.kth_scores.push_back(row.winners > 0 ? static_cast<double>(row.kth_score)
                                           : std::numeric_limits<double>::quiet_NaN());
  all.thresholds.push_back(static_cast<double>(row.threshold));
  if (!row.bounded) return;

  ++all.bounded_rows;
  all.competing += static_cast<std::int64_t>(row.score.size());
  all.winners += row.winners;
  all.unbounded += row.unbounded;
  const double keys = static_cast<double>(std::max<std::int64_t>(all.shape.keys, 1));
  const float origin = all.single() || !std::isfinite(row.kth_score) ? 0 : row.kth_score;
  const float limit = all.single() || !std::isfinite(row.threshold) ? origin : row.threshold;
  for (std::size_t i = 0; i < row.score.size(); ++i) {
    const KeyFate fate = fate_of(row, i);
    const double place = static_cast<double>(row.first_key) + static_cast<double>(i);
    auto& bin =
        all.bins[std::min<std::size_t>(kBins - 1, static_cast<std::size_t>(place / keys * static_cast<double>(kBins)))];
    bin.visible += 1;
    bin.winners += fate == KeyFate::winner ? 1 : 0;
    bin.scored += fate == KeyFate::scored || fate == KeyFate::scouted ? 1 : 0;
    all.survivors += fate != KeyFate::rejected ? 1 : 0;
    if (i % static_cast<std::size_t>(all.stride) != 0) continue;
    if (!std::isfinite(row.score[i]) || !std::isfinite(row.upper[i])) continue;
    all.slacks.push_back(static_cast<double>(row.upper[i]) - static_cast<double>(row.score[i]));
    all.points.push_back({row.score[i] - origin, row.upper[i] - limit, fate});
  }
}

}  // namespace

Explanation explain_rows(const std::string& trace, const Problem& problem, const Options& options,
                         std::span<const std::int64_t> rows, const std::string& progress) {
  Explanation all;
  all.trace = trace;
  all.shape = shape_of(problem);
  all.rows.assign(rows.begin(), rows.end());
  all.bins.resize(kBins);
  double keys = 0;
  for (const std::int64_t t : rows) {
    keys += static_cast<double>(window_of(*problem.ks.at(t), *problem.ke.at(t), all.shape.keys).size());
  }
  // Odd: a stride that shares no factor with the blocks and pages that keys come in.
  all.stride = static_cast<std::int64_t>(std::max(1.0, std::ceil(keys / kMostPoints))) | 1;

  BoundCapture bounds(all.shape.rows, rows);
  std::vector<double> gaps;
  const auto look = [&](const Call& call, std::int64_t first, std::int64_t count) {
    if (call.options.backend != Backend::cpu) return;
    const std::int64_t threads = own_threads(call.options.threads);
    tbb::task_arena arena(static_cast<int>(threads));
    std::vector<std::int64_t> wanted;
    for (std::int64_t t = first; t < first + count; ++t) {
      if (bounds.wanted(t)) wanted.push_back(t);
    }
    const auto total = static_cast<std::int64_t>(wanted.size());
    for (std::int64_t done = 0; done < total; done += threads) {
      std::vector<RowAnalysis> found(static_cast<std::size_t>(std::min(threads, total - done)));
      arena.execute([&] {
        tbb::parallel_for(std::size_t{0}, found.size(), [&](std::size_t i) {
          const std::int64_t t = wanted[static_cast<std::size_t>(done) + i];
          found[i] = analyse_row(problem, call.options, t,
                                 call.selection.stats.row_reports[static_cast<std::size_t>(t)], bounds.take(t));
        });
      });
      for (const RowAnalysis& row : found) {
        fold(row, all);
        if (row.report.path == Path::dosa && row.winners > 0) {
          gaps.push_back(static_cast<double>(row.kth_score) - static_cast<double>(row.threshold));
        }
      }
    }
    bounds.next_batch(first + count);
  };
  all.call = call_engine(problem, options, progress, look);
  for (const RowReport& report : all.call.selection.stats.row_reports) {
    if (report.path != Path::dosa || std::isnan(report.last_score)) continue;
    all.gaps.push_back(static_cast<double>(report.last_score) - static_cast<double>(report.threshold));
  }
  if (all.gaps.empty()) all.gaps = std::move(gaps);
  return all;
}

void describe_distances(const Explanation& e, Table& table, Json& json) {
  const Quantiles gap = quantiles(e.gaps), slack = quantiles(e.slacks);
  json["tau_gap"] = to_json(gap);
  json["slack"] = to_json(slack);
  json["rows_looked_at"] = e.rows.size();
  if (gap.count > 0) {
    table.row("tau gap", text::format("{}: K-th score minus the threshold used, {}", text(gap),
                                      counted(static_cast<std::int64_t>(gap.count), "row")));
  }
  if (slack.count > 0) {
    table.row("slack",
              text::format("{}: upper bound minus score, {} of {}", text(slack),
                           counted(static_cast<std::int64_t>(slack.count), "key"), counted(e.bounded_rows, "row")));
  }
}

}  // namespace dosa::app
