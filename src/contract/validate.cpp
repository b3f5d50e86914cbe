#include "contract/validate.hpp"

#include <fmt/ranges.h>

#include <bit>
#include <limits>

#include "contract/row.hpp"
#include "contract/text.hpp"

namespace dosa {
namespace {

constexpr std::int64_t kIndexLimit = std::int64_t{1} << 31;

[[noreturn]] void bad(const std::string& message) { throw Error(ErrorKind::bad_input, message); }
[[noreturn]] void usage(const std::string& message) { throw Error(ErrorKind::usage, message); }

std::string place(const Device& device) {
  return device.kind == DeviceKind::cpu ? "host memory" : text::format("memory of cuda:{}", device.index);
}

template <class T, std::size_t Rank>
void check_view(const char* name, const TensorView<T, Rank>& view, std::array<std::int64_t, Rank> wanted,
                const Device& device, bool last_contiguous) {
  if (view.shape != wanted)
    bad(text::format("{}: found shape [{}], wanted [{}]", name, fmt::join(view.shape, ", "), fmt::join(wanted, ", ")));
  detail::check_device(name, view.device, device);
  bool empty = false;
  for (const std::int64_t extent : wanted) empty = empty || extent == 0;
  if (empty) return;
  if (view.absent()) bad(text::format("{}: found no data (null pointer), wanted [{}]", name, fmt::join(wanted, ", ")));
  if (last_contiguous && wanted[Rank - 1] > 1 && view.strides[Rank - 1] != 1)
    bad(text::format("{}: found stride {} on the last axis, wanted 1", name, view.strides[Rank - 1]));
  if (reinterpret_cast<std::uintptr_t>(view.data) % alignof(T) != 0)
    bad(text::format("{}: found an address that is not a multiple of {}, wanted one that is", name, alignof(T)));
}

void check_visible_pages(const PagedKeys& keys, const Problem& problem, const Shape& shape, const Options& options) {
  // Rows of one request mostly see overlapping pages: remember the stretch of pages already checked.
  std::int64_t request = -1, checked_first = 0, checked_last = 0;
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const Row row = make_row(problem, shape, options, t);
    const std::int64_t first_key = row.head.first;
    const std::int64_t last_key = row.tail.last;
    if (last_key <= first_key) continue;
    const std::int64_t first = first_key / keys.page_size;
    const std::int64_t last = (last_key - 1) / keys.page_size + 1;
    const auto check = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t column = from; column < to; ++column) {
        const std::int64_t page = *keys.block_table.at(row.request, column);
        if (page < 0 || page >= keys.pages)
          bad(text::format("block_table: request {} column {} (visible to row {}): found page {}, wanted 0..{}",
                           row.request, column, t, page, keys.pages - 1));
      }
    };
    if (row.request != request || last < checked_first || first > checked_last) {
      check(first, last);
      request = row.request;
      checked_first = first;
      checked_last = last;
      continue;
    }
    if (first < checked_first) {
      check(first, checked_first);
      checked_first = first;
    }
    if (last > checked_last) {
      check(checked_last, last);
      checked_last = last;
    }
  }
}

}  // namespace

Shape shape_of(const Problem& problem) {
  Shape shape;
  shape.rows = problem.q.shape[0];
  shape.heads = problem.q.shape[1];
  shape.head_dim = problem.q.shape[2];
  shape.device = problem.q.device;
  if (const auto* paged = std::get_if<PagedKeys>(&problem.keys)) {
    shape.paged = true;
    shape.requests = paged->block_table.shape[0];
    shape.pages = paged->pages;
    shape.page_size = paged->page_size;
    shape.row_request = !problem.row_request.absent();
    std::int64_t keys = 0;
    if (__builtin_mul_overflow(paged->block_table.shape[1], std::int64_t{paged->page_size}, &keys))
      bad(text::format("block_table: found {} columns of {} keys, wanted fewer than 2^31 keys",
                       paged->block_table.shape[1], paged->page_size));
    shape.keys = keys;
    if (paged->head_dim != shape.head_dim)
      bad(text::format("paged keys: found head dimension {}, wanted {} (that of q)", paged->head_dim, shape.head_dim));
  } else {
    const auto& contiguous = std::get<ContiguousKeys>(problem.keys);
    shape.keys = contiguous.codes.shape[0];
    if (contiguous.codes.shape[1] != shape.head_dim)
      bad(text::format("k: found head dimension {}, wanted {} (that of q)", contiguous.codes.shape[1], shape.head_dim));
    if (!problem.row_request.absent())
      bad("row_request: found with contiguous keys, wanted paged keys (windows tell requests apart)");
  }
  return shape;
}

namespace detail {

void check_device(std::string_view name, const Device& found, const Device& wanted) {
  if (!(found == wanted))
    bad(text::format("{}: lies on another device than the plan's: found {}, wanted {}", name, place(found),
                     place(wanted)));
}

void validate_shape(const Shape& shape) {
  if (shape.rows < 0) bad(text::format("q: found {} rows, wanted 0 or more", shape.rows));
  if (shape.heads < 1 || shape.heads > 128) bad(text::format("q: found {} heads, wanted 1..128", shape.heads));
  if (shape.head_dim < 32 || shape.head_dim > 256 || shape.head_dim % 32 != 0)
    bad(text::format("q: found head dimension {}, wanted a multiple of 32 in 32..256", shape.head_dim));
  if (shape.keys < 0 || shape.keys >= kIndexLimit) bad(text::format("k: found {} keys, wanted 0..2^31-1", shape.keys));
  if (!shape.paged) return;
  if (shape.page_size < 1 || shape.page_size > 256 || !std::has_single_bit(static_cast<unsigned>(shape.page_size)))
    bad(text::format("paged keys: found page size {}, wanted a power of two in 1..256", shape.page_size));
  if (shape.pages < 0) bad(text::format("paged keys: found {} pages, wanted 0 or more", shape.pages));
  if (shape.requests < 0) bad(text::format("block_table: found {} requests, wanted 0 or more", shape.requests));
  if (!shape.row_request && shape.rows > 0 && (shape.requests == 0 || shape.rows % shape.requests != 0))
    bad(text::format("rows: found {} rows for {} requests and no row_request, wanted a multiple", shape.rows,
                     shape.requests));
}

void validate_options(const Options& options, const Shape& shape) {
  if (options.top_k < 1) usage(text::format("top_k: found {}, wanted 1 or more", options.top_k));
  if (options.always_first < 0) usage(text::format("always_first: found {}, wanted 0 or more", options.always_first));
  if (options.always_last < 0) usage(text::format("always_last: found {}, wanted 0 or more", options.always_last));
  if (options.threads < 0 || options.threads > 4096)
    usage(text::format("threads: found {}, wanted 0 (all) to 4096", options.threads));
  if (options.retained_heads < 0 || options.retained_heads > shape.heads)
    usage(text::format("retained heads (r): found {}, wanted 0 (chosen by measurement) to {} (the heads)",
                       options.retained_heads, shape.heads));
  if (options.index_base == IndexBase::slot) {
    if (!shape.paged) usage("index base: found slot with contiguous keys, wanted paged keys");
    if (shape.pages >= kIndexLimit / shape.page_size)
      bad(text::format("paged keys: found {} pages of {} keys, wanted fewer than 2^31 slots for index base slot",
                       shape.pages, shape.page_size));
  }
  if (options.shard) {
    const Shard& shard = *options.shard;
    if (shard.total_keys < 0 || shard.total_keys >= kIndexLimit)
      bad(text::format("shard: found {} keys in the whole sequence, wanted 0..2^31-1", shard.total_keys));
    if (shard.first_key < 0 || shard.first_key > shard.total_keys - shape.keys)
      bad(text::format("shard: found {} keys from key {} on, wanted a part of the sequence's {} keys", shape.keys,
                       shard.first_key, shard.total_keys));
  }
}

void validate_problem(const Problem& problem, const Shape& shape, const Options& options) {
  if (const Shape found = shape_of(problem); found != shape)
    bad(text::format(
        "problem: found {} rows, {} heads, head dimension {}, {} keys{}, wanted the plan's {} rows, {} heads, head "
        "dimension {}, {} keys{} (and the same paging and device)",
        found.rows, found.heads, found.head_dim, found.keys, found.paged ? " (paged)" : "", shape.rows, shape.heads,
        shape.head_dim, shape.keys, shape.paged ? " (paged)" : ""));
  check_view("q", problem.q, {shape.rows, shape.heads, shape.head_dim}, shape.device, true);
  check_view("weights", problem.weights, {shape.rows, shape.heads}, shape.device, true);
  check_view("ks", problem.ks, {shape.rows}, shape.device, false);
  check_view("ke", problem.ke, {shape.rows}, shape.device, false);
  if (const auto* contiguous = std::get_if<ContiguousKeys>(&problem.keys)) {
    check_view("k", contiguous->codes, {shape.keys, shape.head_dim}, shape.device, true);
    check_view("k_scale", contiguous->scales, {shape.keys}, shape.device, false);
    return;
  }
  const auto& paged = std::get<PagedKeys>(problem.keys);
  check_view("block_table", paged.block_table, {shape.requests, shape.keys / shape.page_size}, shape.device, false);
  check_device("paged keys", paged.device, shape.device);
  const std::int64_t page_bytes = std::int64_t{paged.page_size} * (shape.head_dim + 4);
  if (paged.page_stride < page_bytes || paged.page_stride % 4 != 0)
    bad(text::format("paged keys: found a page stride of {} bytes, wanted a multiple of 4, {} or more",
                     paged.page_stride, page_bytes));
  if (reinterpret_cast<std::uintptr_t>(paged.cache) % alignof(float) != 0)
    bad("paged keys: found a cache address that is not a multiple of 4, wanted one that is");
  if (paged.cache == nullptr && paged.pages > 0) bad("paged keys: found no data (null pointer)");
  // Values that lie on a device are not read back: the run leaves such rows and keys out and says so in a status word.
  const bool readable = shape.device.kind == DeviceKind::cpu;
  if (shape.row_request) {
    check_view("row_request", problem.row_request, {shape.rows}, shape.device, false);
    for (std::int64_t t = 0; readable && t < shape.rows; ++t)
      if (const std::int32_t request = *problem.row_request.at(t); request < 0 || request >= shape.requests)
        bad(text::format("row_request: row {}: found request {}, wanted 0..{}", t, request, shape.requests - 1));
  }
  if (readable) check_visible_pages(paged, problem, shape, options);
}

void validate_selection(const Selection& selection, const Shape& shape, const Options& options) {
  check_view("indices", selection.indices, {shape.rows, options.top_k}, shape.device, false);
  check_view("lengths", selection.lengths, {shape.rows}, shape.device, false);
  if (options.scores) {
    check_view("scores", selection.scores, {shape.rows, options.top_k}, shape.device, false);
  } else if (!selection.scores.absent()) {
    bad("scores: found an output, wanted none (Options::scores is off)");
  }
}

}  // namespace detail
}  // namespace dosa
