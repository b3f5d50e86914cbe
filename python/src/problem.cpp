#include "problem.hpp"

#include <algorithm>
#include <limits>

#include "arguments.hpp"
#include "contract/text.hpp"

namespace dosa::python {

Array optional_array(nb::handle object, const char* name, const nb::object& stream) {
  return object.is_none() ? Array() : Array(object, name, stream);
}

PagedKeys paged_keys(const Array& k, const Array& block_table) {
  constexpr const char* kWanted = "uint8 [pages, P, 1, D+4] (paged keys: P*D codes, then P float32 scales, in a page)";
  if (block_table.absent())
    throw Error(ErrorKind::bad_input,
                "block_table: found None with paged keys (k_scale=None), wanted int32 [R, pages]");
  if (k.rank() != 3 && k.rank() != 4) k.mismatch(kWanted);
  const int last = k.rank() - 1;
  const std::int64_t width = k.extent(last);
  if (k.rank() == 4 && k.extent(2) != 1) k.mismatch(kWanted);
  if (k.extent(1) < 1 || k.extent(1) > 256 || width < 5 || width > 4096) k.mismatch(kWanted);
  PagedKeys keys;
  if (k.rank() == 4) {
    keys.cache = k.input<std::uint8_t, 4>(kWanted).data;
  } else {
    keys.cache = k.input<std::uint8_t, 3>(kWanted).data;
  }
  if (k.stride(last) != 1 || (k.extent(1) > 1 && k.stride(1) != width))
    throw Error(ErrorKind::bad_input,
                text::format("{}: found strides inside a page, wanted the bytes of a page without gaps", k.name()));
  keys.pages = k.extent(0);
  keys.page_size = static_cast<std::int32_t>(k.extent(1));
  keys.head_dim = static_cast<std::int32_t>(width - 4);
  keys.page_stride = keys.pages > 1 ? k.stride(0) : k.extent(1) * width;
  keys.block_table = block_table.input<std::int32_t, 2>("int32 [R, pages of a request]");
  keys.device = k.device();
  return keys;
}

Inputs::Inputs(nb::handle q, nb::handle k, nb::handle k_scale, nb::handle weights, nb::handle ks, nb::handle ke,
               nb::handle block_table, nb::handle row_request, const nb::object& rows_per_request, nb::object stream)
    : stream_argument_(std::move(stream)),
      stream_(dosa::python::stream_argument(stream_argument_)),
      q_(q, "q", stream_argument_),
      k_(k, "k", stream_argument_),
      k_scale_(optional_array(k_scale, "k_scale", stream_argument_)),
      weights_(weights, "weights", stream_argument_),
      block_table_(optional_array(block_table, "block_table", stream_argument_)),
      row_request_(optional_array(row_request, "row_request", stream_argument_)) {
  problem_.q = q_.input<std::uint8_t, 3>("float8_e4m3fn, or its codes as uint8, [Q, H, D]");
  problem_.weights = weights_.input<float, 2>("float32 [Q, H]");
  std::int64_t keys = 0;
  if (k_scale_.absent()) {
    const PagedKeys paged = paged_keys(k_, block_table_);
    keys = paged.block_table.shape[1] * paged.page_size;
    problem_.keys = paged;
    if (!row_request_.absent()) problem_.row_request = row_request_.input<std::int32_t, 1>("int32 [Q]");
    if (!rows_per_request.is_none()) {
      const std::int64_t asked = integer(rows_per_request, "rows_per_request");
      const std::int64_t requests = paged.block_table.shape[0], rows = problem_.q.shape[0];
      if (!row_request_.absent())
        throw Error(ErrorKind::usage, "rows_per_request: found beside row_request, wanted one of the two");
      if (asked < 1 || (requests > 0 && asked > rows) || asked * requests != rows)
        throw Error(
            ErrorKind::bad_input,
            text::format("rows_per_request: found {} with {} rows and {} requests, wanted rows_per_request * R = Q",
                         asked, rows, requests));
    }
  } else {
    if (!block_table_.absent() || !row_request_.absent() || !rows_per_request.is_none())
      throw Error(ErrorKind::bad_input,
                  "block_table, row_request, rows_per_request: found with contiguous keys, wanted paged keys "
                  "(k uint8 [pages, P, 1, D+4] and k_scale=None)");
    ContiguousKeys contiguous;
    contiguous.codes =
        k_.input<std::uint8_t, 2>("float8_e4m3fn, or its codes as uint8, [N, D] (or k_scale=None and pages)");
    contiguous.scales = k_scale_.input<float, 1>("float32 [N]");
    keys = contiguous.codes.shape[0];
    problem_.keys = contiguous;
  }
  problem_.ks = bound(ks, "ks", 0, first_, ks_);
  problem_.ke = bound(ke, "ke", keys, last_, ke_);
  shape_ = shape_of(problem_);
}

TensorView<const std::int32_t, 1> Inputs::bound(nb::handle object, const char* name, std::int64_t all,
                                                std::int32_t& storage, Array& array) {
  if (!object.is_none() && !PyLong_Check(object.ptr())) {
    array = Array(object, name, stream_argument_);
    // NumPy's integers are arrays without axes.
    if (array.rank() != 0 || PyIndex_Check(object.ptr()) == 0)
      return array.input<std::int32_t, 1>("int32 [Q], or an integer for all rows");
    array = Array();
  }
  if (problem_.q.device.kind != DeviceKind::cpu)
    throw Error(ErrorKind::bad_input,
                text::format("{}: found a number on the host, wanted int32 [Q] on the device of q", name));
  if (!object.is_none()) all = integer(object, name);
  // More keys than an int32 counts are refused by plan().
  storage = static_cast<std::int32_t>(std::clamp<std::int64_t>(all, std::numeric_limits<std::int32_t>::min(),
                                                               std::numeric_limits<std::int32_t>::max()));
  return {&storage, {problem_.q.shape[0]}, {0}, {}};
}

void* Inputs::stream_handle() const {
  if (!stream_) return q_.stream();
  // 1 and 2 are DLPack's words for the legacy and the per-thread default stream, as they are CUDA's own handles.
  return reinterpret_cast<void*>(*stream_);
}

}  // namespace dosa::python
