// Running the engine over all rows of a trace, in batches where that takes long enough to watch.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dosa/plan.hpp"

namespace dosa::app {

/// A view of rows first .. first+count-1, keys shared.
[[nodiscard]] Problem slice_rows(const Problem& problem, std::int64_t first, std::int64_t count);

/// Rows a batch holds so that it takes a fraction of a second: from the sizes alone, never from a clock or a terminal,
/// so equal commands make equal calls.
[[nodiscard]] std::int64_t rows_per_batch(const Shape& shape, const Options& options);

/// Adds the sums of another run; row reports stay as they are.
void add(Stats& total, const Stats& part);

struct Call {
  Options options;  ///< as the plan resolved them
  std::string why;
  std::size_t workspace_bytes = 0;
  OwnedSelection selection;  ///< of all rows
};

/// Selects for every row; a carry links the batches. Stats are sums, row reports are complete. `after_batch` sees the
/// call so far and the rows that the last batch added.
[[nodiscard]] Call call_engine(
    const Problem& problem, const Options& options, const std::string& progress,
    const std::function<void(const Call&, std::int64_t first, std::int64_t count)>& after_batch = {});

/// The same from the reference backend, whose rows are spread over `threads` (the backend itself uses one).
[[nodiscard]] Call call_reference(const Problem& problem, const Options& options, int threads,
                                  const std::string& progress);

/// Threads that work of our own may take: TBB warns on standard error where an arena asks for more than there are.
[[nodiscard]] int own_threads(int asked);

}  // namespace dosa::app
