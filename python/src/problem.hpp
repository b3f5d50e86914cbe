// One call's inputs as Python hands them over, turned into dosa::Problem.
#pragma once

#include <optional>
#include <vector>

#include "array.hpp"
#include "dosa/dosa.hpp"

namespace dosa::python {

/// Holds the views and what keeps them alive.
class Inputs {
 public:
  /// `k_scale` None: paged keys, k is uint8 [pages, P, 1, D+4] or [pages, P, D+4], and block_table is wanted.
  /// `ks`, `ke`: arrays, or one integer for all rows (host tensors only), or None (0 and N, host tensors only).
  Inputs(nb::handle q, nb::handle k, nb::handle k_scale, nb::handle weights, nb::handle ks, nb::handle ke,
         nb::handle block_table, nb::handle row_request, const nb::object& rows_per_request, nb::object stream);
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// All of the call's inputs; those that it does not have are absent.
  [[nodiscard]] std::vector<const Array*> arrays() const {
    return {&q_, &k_, &k_scale_, &weights_, &ks_, &ke_, &block_table_, &row_request_};
  }
  [[nodiscard]] const nb::object& stream() const noexcept { return stream_argument_; }
  /// What the call is enqueued on: the argument, else the stream of q's framework, else the default stream.
  [[nodiscard]] void* stream_handle() const;

 private:
  TensorView<const std::int32_t, 1> bound(nb::handle object, const char* name, std::int64_t all, std::int32_t& storage,
                                          Array& array);

  nb::object stream_argument_;
  std::optional<std::uintptr_t> stream_;
  Array q_, k_, k_scale_, weights_, ks_, ke_, block_table_, row_request_;
  std::int32_t first_ = 0, last_ = 0;
  Problem problem_;
  Shape shape_;
};

/// An array of 32-bit row numbers, keys' pages and the like; None: absent.
[[nodiscard]] Array optional_array(nb::handle object, const char* name, const nb::object& stream);

/// k uint8 [pages, P, 1, D+4] or [pages, P, D+4] with its block table.
[[nodiscard]] PagedKeys paged_keys(const Array& k, const Array& block_table);

}  // namespace dosa::python
