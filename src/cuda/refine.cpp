#include "cuda/refine.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "contract/backend.hpp"
#include "contract/text.hpp"
#include "contract/validate.hpp"
#include "cuda/call.hpp"
#include "cuda/hardware.hpp"
#include "cuda/merge.cuh"
#include "cuda/refine.cuh"
#include "cuda/staging.hpp"

namespace dosa::cuda {
namespace {

[[noreturn]] void bad(const std::string& message) { throw Error(ErrorKind::bad_input, message); }

struct RefineLayout {
  int chunks = 1;  ///< pieces of each row's keys; 1: a block selects and writes its row
  int grid = 0;
  std::int32_t capacity = 0;
  std::size_t counters = 0, buffers = 0, counts = 0, repeats = 0, bytes = 0;  ///< offsets
};
constexpr std::size_t kTicketOffset = 128;  // behind the counters, zeroed with them
constexpr std::size_t kZeroed = 256;
static_assert(sizeof(DeviceCounters) <= kTicketOffset);

RefineLayout refine_layout(const Shape& shape, const Options& options) {
  const Tuning& forced = tuning();
  RefineLayout layout;
  const int resident = hardware().multiprocessors * refine_blocks_per_sm(static_cast<std::int32_t>(shape.heads));
  const std::int64_t steps = std::max<std::int64_t>((shape.keys + kRefineStepKeys - 1) / kRefineStepKeys, 1);
  const std::int64_t wanted = shape.rows == 0 ? 1 : (resident + shape.rows - 1) / shape.rows;
  layout.chunks =
      forced.chunks > 0 ? std::min(forced.chunks, 512) : static_cast<int>(std::min({wanted, steps, std::int64_t{512}}));
  layout.grid = static_cast<int>(
      std::min<std::int64_t>(shape.rows * layout.chunks, forced.grid > 0 ? forced.grid : std::max(resident, 1)));
  // K entries to keep, as many (and at least 2048) to collect before the next cut, or room for the sorted ones.
  layout.capacity = static_cast<std::int32_t>(options.top_k + std::max<std::int64_t>(options.top_k, 2048));
  std::size_t bytes = 0;
  const auto take = [&bytes](std::int64_t count, std::size_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return at;
  };
  layout.counters = take(1, kZeroed);
  const std::int64_t pieces = shape.rows * layout.chunks;
  layout.buffers = take((layout.chunks == 1 ? layout.grid : pieces) * std::int64_t{layout.capacity}, sizeof(Entry));
  if (layout.chunks > 1) {
    layout.counts = take(pieces, sizeof(std::uint32_t));
    layout.repeats = take(shape.rows, sizeof(std::uint32_t));
  }
  layout.bytes = bytes + 256;  // the start is rounded up to a multiple of 256
  return layout;
}

const detail::PlanState& checked(const Plan& plan) {
  const detail::PlanState& state = plan.state();
  if (state.backend->backend != Backend::cuda || state.shape.device.kind != DeviceKind::cuda)
    bad(text::format("pairs: found a plan of backend {} for {}, wanted backend cuda and device tensors",
                     name(state.backend->backend),
                     state.shape.device.kind == DeviceKind::cuda ? "a device" : "host memory"));
  return state;
}

RefineParams prepared(const detail::PlanState& state, const RefineLayout& at, const Problem& problem,
                      const PairMask& pairs, void* workspace, std::size_t workspace_bytes) {
  detail::validate_problem(problem, state.shape, state.options);
  if (state.shape.rows > 0 && state.shape.keys > 0) {
    if (pairs.words == nullptr) bad("pairs: found no mask (null pointer)");
    if (reinterpret_cast<std::uintptr_t>(pairs.words) % 16 != 0)
      bad("pairs: found a mask address that is not a multiple of 16, wanted one that is");
    if (pairs.row_words % 4 != 0 || (pairs.row_words != 0 && pairs.row_words < mask_words(state.shape.keys)))
      bad(text::format("pairs: found {} words from row to row, wanted 0 or a multiple of 4, {} or more",
                       pairs.row_words, mask_words(state.shape.keys)));
  }
  if (workspace_bytes < at.bytes || workspace == nullptr)
    bad(text::format("workspace: found {} bytes, wanted {} or more of device memory", workspace_bytes, at.bytes));
  std::byte* const base = start_of(static_cast<std::byte*>(workspace));
  RefineParams r{};
  Params& p = r.call = params_of(state, problem);
  p.mode = Mode::stream;
  p.chunks = at.chunks;
  p.capacity = at.capacity;
  p.row_stride = static_cast<std::int64_t>(at.chunks) * at.capacity;
  p.counters = reinterpret_cast<DeviceCounters*>(base + at.counters);
  p.buffers = reinterpret_cast<Entry*>(base + at.buffers);
  p.counts = reinterpret_cast<std::uint32_t*>(base + at.counts);
  p.repeats = reinterpret_cast<std::uint32_t*>(base + at.repeats);
  r.ticket = reinterpret_cast<std::uint32_t*>(base + at.counters + kTicketOffset);
  r.mask = pairs.words;
  r.mask_row = pairs.row_words;
  return r;
}

void queue(const RefineParams& r, int grid, cudaStream_t stream) {
  check(cudaMemsetAsync(r.call.counters, 0, kZeroed, stream), "counters");
  check(launch_refine(r, grid, stream), "pairs");
}

}  // namespace

std::size_t refine_workspace_bytes(const Plan& plan) {
  const detail::PlanState& state = checked(plan);
  return refine_layout(state.shape, state.options).bytes;
}

void refine_on_stream(const Plan& plan, const Problem& problem, const PairMask& pairs, const Selection& selection,
                      void* workspace, std::size_t workspace_bytes, void* stream) {
  const detail::PlanState& state = checked(plan);
  const RefineLayout layout = refine_layout(state.shape, state.options);
  RefineParams r = prepared(state, layout, problem, pairs, workspace, workspace_bytes);
  detail::validate_selection(selection, state.shape, state.options);
  if (state.shape.rows == 0) return;
  set_outputs(r.call, state.options, selection);
  const OnDevice current(state.shape.device);
  queue(r, layout.grid, static_cast<cudaStream_t>(stream));
  if (layout.chunks > 1) check(launch_merge(r.call, static_cast<cudaStream_t>(stream)), "merge");
}

void refine_scores_on_stream(const Plan& plan, const Problem& problem, const PairMask& pairs, TensorView<float, 2> out,
                             void* workspace, std::size_t workspace_bytes, void* stream) {
  const detail::PlanState& state = checked(plan);
  const RefineLayout layout = refine_layout(state.shape, state.options);
  RefineParams r = prepared(state, layout, problem, pairs, workspace, workspace_bytes);
  if (out.shape != std::array<std::int64_t, 2>{state.shape.rows, state.shape.keys})
    bad(text::format("scores: found shape [{}, {}], wanted [{}, {}]", out.shape[0], out.shape[1], state.shape.rows,
                     state.shape.keys));
  detail::check_device("scores", out.device, state.shape.device);
  if (state.shape.rows == 0 || state.shape.keys == 0) return;
  if (out.absent()) bad("scores: found no data (null pointer)");
  r.call.matrix = out.data;
  r.call.matrix_row = out.strides[0], r.call.matrix_key = out.strides[1];
  const OnDevice current(state.shape.device);
  queue(r, layout.grid, static_cast<cudaStream_t>(stream));
}

}  // namespace dosa::cuda
