#include "dosa/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "contract/total_order.hpp"
#include "contract/validate.hpp"
#include "contract/window.hpp"
#include "contract/write_row.hpp"

namespace dosa {
namespace {

[[noreturn]] void bad(const std::string& message) { throw Error(ErrorKind::bad_input, message); }

void check_parts(std::span<const Partial> parts, std::int64_t rows) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Partial& part = parts[p];
    const std::int64_t width = part.indices.shape[1];
    if (part.indices.shape[0] != rows || part.lengths.shape[0] != rows || part.scores.shape != part.indices.shape)
      bad(fmt::format("part {}: found indices [{}, {}], lengths [{}], scores [{}, {}], wanted {} rows and equal shapes",
                      p, part.indices.shape[0], width, part.lengths.shape[0], part.scores.shape[0],
                      part.scores.shape[1], rows));
    for (std::int64_t t = 0; t < rows; ++t)
      if (const std::int32_t length = *part.lengths.at(t); length < 0 || length > width)
        bad(fmt::format("part {}: row {}: found length {}, wanted 0..{}", p, t, length, width));
  }
}

}  // namespace

void merge(std::span<const Partial> parts, TensorView<const std::int32_t, 1> ks, TensorView<const std::int32_t, 1> ke,
           std::int64_t total_keys, const Options& options, const Selection& selection, const PagedKeys* paged,
           TensorView<const std::int32_t, 1> row_request) {
  const std::int64_t rows = ks.shape[0];
  if (ke.shape[0] != rows) bad(fmt::format("ke: found {} rows, wanted {} (those of ks)", ke.shape[0], rows));
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
  check_parts(parts, rows);

  Problem problem;
  problem.ks = ks;
  problem.ke = ke;
  problem.row_request = row_request;
  if (paged != nullptr) problem.keys = *paged;

  std::size_t most = 0;
  for (const Partial& part : parts) most += static_cast<std::size_t>(part.indices.shape[1]);
  std::vector<Entry> entries(most);
  for (std::int64_t t = 0; t < rows; ++t) {
    Row row;
    row.row = t;
    row.request = request_of(problem, shape, t);
    row.window = window_of(*ks.at(t), *ke.at(t), total_keys);
    const Forced forced = forced_of(row.window, options.always_first, options.always_last);
    std::size_t count = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      for (std::int64_t slot = 0; slot < *parts[p].lengths.at(t); ++slot) {
        const Entry entry{*parts[p].scores.at(t, slot), *parts[p].indices.at(t, slot)};
        if (entry.index < row.window.first || entry.index >= row.window.last)
          bad(fmt::format("part {}: row {} slot {}: found index {}, wanted {}..{} (absolute, inside the window)", p, t,
                          slot, entry.index, row.window.first, row.window.last - 1));
        if (!selectable(entry.score)) bad(fmt::format("part {}: row {} slot {}: found a NaN score", p, t, slot));
        entries[count++] = entry;
      }
    }
    const auto first = entries.begin();
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    std::sort(first, last, [](const Entry& a, const Entry& b) { return a.index < b.index; });
    if (const auto twice =
            std::adjacent_find(first, last, [](const Entry& a, const Entry& b) { return a.index == b.index; });
        twice != last)
      bad(fmt::format("row {}: found index {} in two places, wanted each key once", t, twice->index));
    // Forced keys first by index, then the total order.
    const auto ranks_before = [&](const Entry& a, const Entry& b) {
      const bool forced_a = forced.contains(a.index), forced_b = forced.contains(b.index);
      if (forced_a != forced_b) return forced_a;
      return forced_a ? a.index < b.index : before(a, b);
    };
    const auto kept =
        static_cast<std::ptrdiff_t>(std::min<std::int64_t>(static_cast<std::int64_t>(count), options.top_k));
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
