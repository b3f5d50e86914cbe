// The oracle: every visible key is scored under the model, the row is sorted by the total order. Nothing is skipped.
#include <algorithm>
#include <limits>
#include <memory>

#include "contract/backend.hpp"
#include "contract/row.hpp"
#include "contract/total_order.hpp"
#include "contract/write_row.hpp"
#include "cpu/float_environment.hpp"

namespace dosa::detail {
namespace {

void plan_reference(PlanState& state) {
  state.options.threads = 1;
  state.options.isa = Isa::portable;
  // One row's entries: the reference is the one backend whose memory grows by 8 bytes a key.
  state.workspace_bytes = static_cast<std::size_t>(state.shape.keys) * sizeof(Entry) + alignof(Entry);
  state.why = "reference, asked for; one thread, scalar score model, sort";
}

void count_row(const PlanState& state, const Row& row, Stats& stats) {
  const double dots = static_cast<double>(row.free.size()) * static_cast<double>(state.shape.heads);
  RowReport report;
  report.retained_heads = static_cast<std::int32_t>(state.shape.heads);
  report.visible = row.free.size() + row.forced();
  report.survivors = report.exact = row.free.size();
  report.dot_products = dots;
  stats.rows += 1;
  stats.rows_model += 1;
  stats.visible += report.visible;
  stats.survivors += report.survivors;
  stats.exact += report.exact;
  stats.dot_products += dots;
  stats.dense_dot_products += dots;
  if (!stats.row_reports.empty()) stats.row_reports[static_cast<std::size_t>(row.row)] = report;
}

void run_reference(const PlanState& state, const Problem& problem, const Selection& selection,
                   std::span<std::byte> workspace, Carry, Stats& stats) {
  const cpu::FloatEnvironment environment;
  void* memory = workspace.data();
  std::size_t space = workspace.size();
  std::align(alignof(Entry), static_cast<std::size_t>(state.shape.keys) * sizeof(Entry), memory, space);
  auto* const entries = static_cast<Entry*>(memory);
  for (std::int64_t t = 0; t < state.shape.rows; ++t) {
    const Row row = make_row(problem, state.shape, state.options, t);
    const KeySource keys = key_source(problem, row.request);
    std::int64_t count = 0;
    for (std::int64_t i = row.free.first; i < row.free.last; ++i) {
      const KeyAddress key = keys.locate(i);
      const float value = score(state.options.model, row.score, key.codes, *key.scale);
      if (selectable(value)) entries[count++] = {value, static_cast<std::int32_t>(i)};
    }
    std::sort(entries, entries + count, before);
    const std::int64_t kept = std::min(count, row.free_slots(state.options.top_k));
    write_row(problem, state.options, row, {entries, static_cast<std::size_t>(kept)}, selection);
    count_row(state, row, stats);
  }
}

void scores_reference(const PlanState& state, const Problem& problem, TensorView<float, 2> out) {
  const cpu::FloatEnvironment environment;
  for (std::int64_t t = 0; t < state.shape.rows; ++t) {
    const Row row = make_row(problem, state.shape, state.options, t);
    const KeySource keys = key_source(problem, row.request);
    for (std::int64_t i = 0; i < state.shape.keys; ++i) {
      float value = -std::numeric_limits<float>::infinity();
      if (row.visible(i)) {
        const KeyAddress key = keys.locate(i);
        value = score(state.options.model, row.score, key.codes, *key.scale);
      }
      *out.at(t, i) = value;
    }
  }
}

}  // namespace

const BackendTable& reference_backend() noexcept {
  static constexpr BackendTable kTable{Backend::reference, plan_reference, run_reference, scores_reference};
  return kTable;
}

}  // namespace dosa::detail
