// Merging the partial results of key shards in the total order.
#pragma once

#include <span>

#include "dosa/export.hpp"
#include "dosa/plan.hpp"

namespace dosa DOSA_PUBLIC {

/// One shard's result: order any, index base absolute, scores present.
struct Partial {
  TensorView<const std::int32_t, 2> indices;  ///< I32 [Q, K_p]
  TensorView<const std::int32_t, 1> lengths;  ///< I32 [Q]
  TensorView<const float, 2> scores;          ///< F32 [Q, K_p]
};

/// Merges shards of the same rows: forced keys first, then the total order; order and index base are applied last.
/// `ks`, `ke` [Q] and `total_keys` are those of the whole sequence. `paged` is needed for IndexBase::slot alone, with
/// `row_request` as in Problem. A shard returned at least min(K, its selectable keys) entries, or the result is not the
/// Top-K. Throws Error{bad_input} for shapes that disagree, indices outside the window and duplicates.
void merge(std::span<const Partial> parts, TensorView<const std::int32_t, 1> ks, TensorView<const std::int32_t, 1> ke,
           std::int64_t total_keys, const Options& options, const Selection& selection,
           const PagedKeys* paged = nullptr, TensorView<const std::int32_t, 1> row_request = {});

}  // namespace DOSA_PUBLIC
