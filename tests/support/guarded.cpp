#include "support/guarded.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "contract/text.hpp"

namespace dosa::test {
namespace {

constexpr std::byte kCanary{0xa5};
constexpr std::int64_t kLargestCopy = std::int64_t{1} << 28;  // sparse caches of gigabytes stay where they are

template <class T, std::size_t Rank>
std::int64_t extent(const TensorView<T, Rank>& view) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    if (view.shape[axis] == 0) return 0;
    last += (view.shape[axis] - 1) * view.strides[axis];
  }
  return last + 1;
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, Side side, std::size_t align, std::size_t offset)
    : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), size_(bytes) {
  // 128 bytes of slack on the open side, so that canaries catch writes that miss by a little.
  const std::size_t inside = (bytes + 128 + align + page_ - 1) / page_ * page_;
  map_bytes_ = inside + 2 * page_;
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<std::byte*>(map);
  mprotect(map_, page_, PROT_NONE);
  mprotect(map_ + page_ + inside, page_, PROT_NONE);
  std::memset(map_ + page_, static_cast<int>(kCanary), inside);
  if (side == Side::begin) {
    data_ = map_ + page_ + offset;
  } else {
    // As near to the guard page as `align` and `offset` (modulo align) allow.
    std::size_t start = inside - bytes;
    start -= (start + align - offset % align) % align;
    data_ = map_ + page_ + start;
  }
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)),
      map_bytes_(other.map_bytes_),
      page_(other.page_),
      data_(other.data_),
      size_(other.size_) {}

GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

void GuardedBuffer::fill(std::uint8_t value) noexcept { std::memset(data_, value, size_); }

void GuardedBuffer::freeze() noexcept { mprotect(map_ + page_, map_bytes_ - 2 * page_, PROT_READ); }

std::optional<std::string> GuardedBuffer::damage() const {
  const auto scan = [&](const std::byte* first, const std::byte* last) -> std::optional<std::string> {
    const std::byte* bad = std::find_if(first, last, [](std::byte b) { return b != kCanary; });
    if (bad == last) return std::nullopt;
    return text::format("byte {} of a buffer of {} bytes was overwritten with {:02x}", bad - data_, size_,
                        std::to_integer<int>(*bad));
  };
  if (auto before = scan(map_ + page_, data_)) return before;
  return scan(data_ + size_, map_ + map_bytes_ - page_);
}

template <class T, std::size_t Rank>
void GuardedProblem::move(TensorView<const T, Rank>& view, GuardedBuffer::Side side, std::size_t misalignment) {
  if (view.absent()) return;
  const std::int64_t count = extent(view);
  if (count > kLargestCopy) return;
  GuardedBuffer buffer(static_cast<std::size_t>(count) * sizeof(T), side, sizeof(T) == 1 ? 16 : 4,
                       sizeof(T) == 1 ? misalignment % 16 : 4 * (misalignment % 4));
  // 0xff: NaN as a code and as a scale, -1 as an index.
  buffer.fill(0xff);
  const auto copy = [&](std::int64_t offset, std::int64_t length) {
    std::memcpy(buffer.data() + static_cast<std::size_t>(offset) * sizeof(T), view.data + offset,
                static_cast<std::size_t>(length) * sizeof(T));
  };
  if constexpr (Rank == 1) {
    for (std::int64_t a = 0; a < view.shape[0]; ++a) copy(a * view.strides[0], 1);
  } else if constexpr (Rank == 2) {
    for (std::int64_t a = 0; a < view.shape[0]; ++a)
      for (std::int64_t b = 0; b < view.shape[1]; ++b) copy(a * view.strides[0] + b * view.strides[1], 1);
  } else {
    for (std::int64_t a = 0; a < view.shape[0]; ++a)
      for (std::int64_t b = 0; b < view.shape[1]; ++b) copy(a * view.strides[0] + b * view.strides[1], view.shape[2]);
  }
  buffer.freeze();
  view.data = reinterpret_cast<const T*>(buffer.data());
  buffers_.push_back(std::move(buffer));
}

GuardedProblem::GuardedProblem(const Problem& original, GuardedBuffer::Side side, std::size_t misalignment)
    : problem_(original) {
  move(problem_.q, side, misalignment);
  move(problem_.weights, side, misalignment);
  move(problem_.ks, side, 0);
  move(problem_.ke, side, 0);
  move(problem_.row_request, side, 0);
  if (auto* contiguous = std::get_if<ContiguousKeys>(&problem_.keys)) {
    move(contiguous->codes, side, misalignment);
    move(contiguous->scales, side, misalignment);
    return;
  }
  auto& paged = std::get<PagedKeys>(problem_.keys);
  move(paged.block_table, side, 0);
  // The cache ends with the last page's scales: behind it lies nothing that may be read.
  const std::int64_t used = std::int64_t{paged.page_size} * (paged.head_dim + 4);
  if (paged.pages == 0 || paged.pages * paged.page_stride > kLargestCopy) return;
  const auto bytes = static_cast<std::size_t>((paged.pages - 1) * paged.page_stride + used);
  GuardedBuffer buffer(bytes, side, 4, 4 * (misalignment % 4));
  std::memcpy(buffer.data(), paged.cache, bytes);
  buffer.freeze();
  paged.cache = reinterpret_cast<const std::uint8_t*>(buffer.data());
  buffers_.push_back(std::move(buffer));
}

std::optional<std::string> GuardedProblem::damage() const {
  for (const GuardedBuffer& buffer : buffers_)
    if (auto found = buffer.damage()) return found;
  return std::nullopt;
}

Result run_guarded(const Problem& problem, const Options& options, const std::string& what, const Surroundings& around,
                   Stats* stats) {
  const Plan decided = plan(shape_of(problem), options);
  const std::int64_t rows = decided.shape().rows, top_k = options.top_k, width = top_k + around.row_gap;
  const auto cells = static_cast<std::size_t>(rows * width);
  GuardedBuffer indices(cells * 4, around.side, 4), lengths(static_cast<std::size_t>(rows) * 4, around.side, 4);
  GuardedBuffer scores(options.scores ? cells * 4 : 0, around.side, 4);
  GuardedBuffer workspace(decided.workspace_bytes(), around.side, 1, around.workspace_offset);
  indices.fill(static_cast<std::uint8_t>(kCanary));
  lengths.fill(static_cast<std::uint8_t>(kCanary));
  scores.fill(static_cast<std::uint8_t>(kCanary));
  workspace.fill(around.workspace_fill);

  Selection selection;
  selection.indices = {reinterpret_cast<std::int32_t*>(indices.data()), {rows, top_k}, {width, 1}, {}};
  selection.lengths = {reinterpret_cast<std::int32_t*>(lengths.data()), {rows}, {1}, {}};
  if (options.scores) selection.scores = {reinterpret_cast<float*>(scores.data()), {rows, top_k}, {width, 1}, {}};
  Carry carry;
  if (around.carry != nullptr) carry = *around.carry;
  run(decided, problem, selection, {workspace.data(), workspace.size()}, carry, stats);

  for (const GuardedBuffer* buffer : {&indices, &lengths, &scores, &workspace})
    if (const auto bad = buffer->damage()) ADD_FAILURE() << what << ": " << *bad;
  Result result;
  result.rows = rows;
  result.top_k = top_k;
  const auto read_rows = [&](const GuardedBuffer& buffer, auto& out) {
    using T = typename std::remove_reference_t<decltype(out)>::value_type;
    const auto* cell = reinterpret_cast<const T*>(buffer.data());
    for (std::int64_t t = 0; t < rows; ++t) {
      out.insert(out.end(), cell + t * width, cell + t * width + top_k);
      const auto* gap = reinterpret_cast<const std::byte*>(cell + t * width + top_k);
      if (std::any_of(gap, gap + 4 * around.row_gap, [](std::byte b) { return b != kCanary; }))
        ADD_FAILURE() << what << ": row " << t << ": slots behind the row's K were written";
    }
  };
  read_rows(indices, result.indices);
  if (options.scores) read_rows(scores, result.scores);
  const auto* length = reinterpret_cast<const std::int32_t*>(lengths.data());
  result.lengths.assign(length, length + rows);
  return result;
}

}  // namespace dosa::test
