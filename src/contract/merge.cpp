#include "dosa/merge.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "contract/text.hpp"
#include "contract/total_order.hpp"
#include "contract/validate.hpp"
#include "contract/window.hpp"
#include "contract/write_row.hpp"

namespace dosa {
namespace {

[[noreturn]] void bad_parts(const std::string& message) { throw Error(ErrorKind::bad_input, message); }

void check_parts(std::span<const Partial> parts, std::int64_t rows) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Partial& part = parts[p];
    const std::int64_t width = part.indices.shape[1];
    if (rows > 0 && (part.lengths.absent() || (width > 0 && (part.indices.absent() || part.scores.absent()))))
      bad_parts(text::format("part {}: found no data (null pointer), wanted indices, lengths and scores", p));
    if (part.indices.shape[0] != rows || part.lengths.shape[0] != rows || part.scores.shape != part.indices.shape)
      bad_parts(text::format(
          "part {}: found indices [{}, {}], lengths [{}], scores [{}, {}], wanted {} rows and equal shapes", p,
          part.indices.shape[0], width, part.lengths.shape[0], part.scores.shape[0], part.scores.shape[1], rows));
    for (std::int64_t t = 0; t < rows; ++t)
      if (const std::int32_t length = *part.lengths.at(t); length < 0 || length > width)
        bad_parts(text::format("part {}: row {}: found length {}, wanted 0..{}", p, t, length, width));
  }
}

/// What finding a slot reads: each row's request and the block table's entry of every index handed in.
void check_paged(const PagedKeys& paged, TensorView<const std::int32_t, 1> row_request, std::int64_t rows,
                 std::int64_t total_keys) {
  const std::int64_t requests = paged.block_table.shape[0], columns = paged.block_table.shape[1];
  if (columns < (total_keys + paged.page_size - 1) / paged.page_size)
    bad_parts(text::format("block_table: found {} columns of {} keys, wanted enough for {} keys", columns,
                           paged.page_size, total_keys));
  if (paged.block_table.absent() && requests > 0 && columns > 0) bad_parts("block_table: found no data (null pointer)");
  if (row_request.absent()) return;
  if (row_request.shape[0] != rows)
    bad_parts(text::format("row_request: found {} rows, wanted {} (those of ks)", row_request.shape[0], rows));
  for (std::int64_t t = 0; t < rows; ++t)
    if (const std::int32_t request = *row_request.at(t); request < 0 || request >= requests)
      bad_parts(text::format("row_request: row {}: found request {}, wanted 0..{}", t, request, requests - 1));
}

}  // namespace

void merge(std::span<const Partial> parts, TensorView<const std::int32_t, 1> ks, TensorView<const std::int32_t, 1> ke,
           std::int64_t total_keys, const Options& options, const Selection& selection, const PagedKeys* paged,
           TensorView<const std::int32_t, 1> row_request) {
  const std::int64_t rows = ks.shape[0];
  if (ke.shape[0] != rows) bad_parts(text::format("ke: found {} rows, wanted {} (those of ks)", ke.shape[0], rows));
  Shape shape{.rows = rows, .heads = 1, .head_dim = 32, .keys = total_keys};
  if (paged != nullptr) {
    shape.paged = true;
    shape.requests = paged->block_table.shape[0];
    shape.pages = paged->pages;
    shape.page_size = paged->page_size;
    shape.row_request = !row_request.absent();
  }
  detail::validate_shape(shape);
  detail::validate_options(options, shape);
  detail::validate_selection(selection, shape, options);
  if ((ks.absent() || ke.absent()) && rows > 0) bad_parts("ks, ke: found no data (null pointer)");
  check_parts(parts, rows);
  if (paged != nullptr) check_paged(*paged, row_request, rows, total_keys);

  Problem problem;
  problem.ks = ks;
  problem.ke = ke;
  problem.row_request = row_request;
  if (paged != nullptr) problem.keys = *paged;

  std::size_t most = 0;
  for (const Partial& part : parts) most += static_cast<std::size_t>(part.indices.shape[1]);
  std::vector<Entry> entries(most);
  const auto gather = [&](std::int64_t t, const Window& window) {
    std::size_t count = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      for (std::int64_t slot = 0; slot < *parts[p].lengths.at(t); ++slot) {
        const Entry entry{*parts[p].scores.at(t, slot), *parts[p].indices.at(t, slot)};
        if (entry.index < window.first || entry.index >= window.last)
          bad_parts(text::format("part {}: row {} slot {}: found index {}, wanted {}..{} (absolute, inside the window)",
                                 p, t, slot, entry.index, window.first, window.last - 1));
        if (!selectable(entry.score)) bad_parts(text::format("part {}: row {} slot {}: found a NaN score", p, t, slot));
        if (options.index_base == IndexBase::slot) {
          const std::int64_t request = request_of(problem, shape, t);
          const std::int64_t page = *paged->block_table.at(request, entry.index / paged->page_size);
          if (page < 0 || page >= paged->pages)
            bad_parts(text::format("block_table: request {} (row {}, index {}): found page {}, wanted 0..{}", request,
                                   t, entry.index, page, paged->pages - 1));
        }
        entries[count++] = entry;
      }
    }
    const std::span<Entry> gathered{entries.data(), count};
    std::sort(gathered.begin(), gathered.end(), [](const Entry& a, const Entry& b) { return a.index < b.index; });
    if (const auto twice = std::adjacent_find(gathered.begin(), gathered.end(),
                                              [](const Entry& a, const Entry& b) { return a.index == b.index; });
        twice != gathered.end())
      bad_parts(text::format("row {}: found index {} in two places, wanted each key once", t, twice->index));
    return gathered;
  };
  // Every row is checked before any is written: an error leaves no result that looks whole.
  for (std::int64_t t = 0; t < rows; ++t) (void)gather(t, window_of(*ks.at(t), *ke.at(t), total_keys));
  for (std::int64_t t = 0; t < rows; ++t) {
    Row row;
    row.row = t;
    row.request = request_of(problem, shape, t);
    row.window = window_of(*ks.at(t), *ke.at(t), total_keys);
    const Forced forced = forced_of(row.window, options.always_first, options.always_last);
    const std::span<Entry> gathered = gather(t, row.window);
    const auto first = gathered.begin();
    const auto last = gathered.end();
    // Forced keys first by index, then the total order.
    const auto ranks_before = [&](const Entry& a, const Entry& b) {
      const bool forced_a = forced.contains(a.index), forced_b = forced.contains(b.index);
      if (forced_a != forced_b) return forced_a;
      return forced_a ? a.index < b.index : before(a, b);
    };
    const auto kept =
        static_cast<std::ptrdiff_t>(std::min<std::int64_t>(static_cast<std::int64_t>(gathered.size()), options.top_k));
    std::partial_sort(first, first + kept, last, ranks_before);
    if (options.order == Order::index)
      std::sort(first, first + kept, [](const Entry& a, const Entry& b) { return a.index < b.index; });
    RowWriter writer(paged, options, row, selection);
    // A forced key keeps its score whatever its shard wrote.
    for (auto entry = first; entry != first + kept; ++entry)
      writer.put(entry->index, forced.contains(entry->index) ? std::numeric_limits<float>::infinity() : entry->score);
    writer.finish();
  }
}

}  // namespace dosa
