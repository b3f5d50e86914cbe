#include "support/rows.hpp"

#include <cstring>

namespace dosa::test {

PickedRows::PickedRows(const Problem& original, const std::vector<std::int64_t>& rows) : problem_(original) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t heads = original.q.shape[1], dim = original.q.shape[2];
  const auto* paged = std::get_if<PagedKeys>(&original.keys);
  q_.resize(static_cast<std::size_t>(count * heads * dim));
  weights_.resize(static_cast<std::size_t>(count * heads));
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t t = rows[static_cast<std::size_t>(r)];
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(q_.data() + (r * heads + h) * dim, original.q.at(t, h), static_cast<std::size_t>(dim));
      weights_[static_cast<std::size_t>(r * heads + h)] = *original.weights.at(t, h);
    }
    ks_.push_back(*original.ks.at(t));
    ke_.push_back(*original.ke.at(t));
    if (paged != nullptr) {
      const std::int64_t next_n = original.q.shape[0] / paged->block_table.shape[0];
      requests_.push_back(original.row_request.absent() ? static_cast<std::int32_t>(t / next_n)
                                                        : *original.row_request.at(t));
    }
  }
  problem_.q = TensorView<const std::uint8_t, 3>::contiguous(q_.data(), {count, heads, dim});
  problem_.weights = TensorView<const float, 2>::contiguous(weights_.data(), {count, heads});
  problem_.ks = TensorView<const std::int32_t, 1>::contiguous(ks_.data(), {count});
  problem_.ke = TensorView<const std::int32_t, 1>::contiguous(ke_.data(), {count});
  if (paged != nullptr) problem_.row_request = TensorView<const std::int32_t, 1>::contiguous(requests_.data(), {count});
}

Result pick(const Result& result, const std::vector<std::int64_t>& rows) {
  Result picked;
  picked.rows = static_cast<std::int64_t>(rows.size());
  picked.top_k = result.top_k;
  for (const std::int64_t t : rows) {
    const auto first = static_cast<std::ptrdiff_t>(t * result.top_k);
    const auto last = first + static_cast<std::ptrdiff_t>(result.top_k);
    picked.indices.insert(picked.indices.end(), result.indices.begin() + first, result.indices.begin() + last);
    if (!result.scores.empty())
      picked.scores.insert(picked.scores.end(), result.scores.begin() + first, result.scores.begin() + last);
    picked.lengths.push_back(result.lengths[static_cast<std::size_t>(t)]);
  }
  return picked;
}

}  // namespace dosa::test
