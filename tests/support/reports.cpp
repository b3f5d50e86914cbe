#include "support/reports.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dosa::test {

Stats run_with_reports(const Problem& problem, const Options& options) {
  const Plan decided = plan(shape_of(problem), options);
  const std::int64_t rows = decided.shape().rows;
  std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * options.top_k));
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(rows));
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(indices.data(), {rows, options.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {rows});
  std::vector<std::byte> workspace(decided.workspace_bytes());
  Stats stats;
  stats.row_reports.resize(static_cast<std::size_t>(rows));
  run(decided, problem, selection, workspace, {}, &stats);
  return stats;
}

}  // namespace dosa::test
