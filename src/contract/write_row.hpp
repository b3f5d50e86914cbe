// Writing one row's result: order, index base, forced keys and fill. The one place that does.
#pragma once

#include <span>

#include "contract/row.hpp"
#include "contract/total_order.hpp"

namespace dosa {

/// Writes a row slot by slot in the order it is called; finish() writes the length and fills the rest.
class RowWriter {
 public:
  /// `paged` is read for IndexBase::slot alone.
  RowWriter(const PagedKeys* paged, const Options& options, const Row& row, const Selection& selection)
      : paged_(paged), options_(options), row_(row), selection_(selection) {}

  /// `key` is local to the view.
  void put(std::int64_t key, float score);
  /// As put() for each entry.
  void put_all(std::span<const Entry> entries);
  [[nodiscard]] bool full() const noexcept { return slot_ == options_.top_k; }
  void finish();

 private:
  const PagedKeys* paged_;
  const Options& options_;
  const Row& row_;
  const Selection& selection_;
  std::int64_t slot_ = 0;
};

/// `entries`: the selected competing keys, local indices, any order (sorted in place); their scores are read only where
/// the order or the output needs them. Forced keys come from `row`.
void write_row(const Problem& problem, const Options& options, const Row& row, std::span<Entry> entries,
               const Selection& selection);

}  // namespace dosa
