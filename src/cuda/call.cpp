#include "cuda/call.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "contract/row.hpp"
#include "contract/text.hpp"
#include "cuda/hardware.hpp"

namespace dosa::cuda {

using detail::PlanState;

namespace {

bool multiple(const void* address, std::int64_t stride, std::int64_t of) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address)) % of == 0 && stride % of == 0;
}

/// Codes of keys as a tensor of (byte, key of the page, page).
CUtensorMap encode_map(const Params& p, std::int64_t box_rows) {
  CUtensorMap map{};
  const auto dim = static_cast<cuuint64_t>(p.head_dim);
  cuuint64_t extents[3] = {dim, static_cast<cuuint64_t>(p.keys), 1};
  cuuint64_t strides[2] = {0, 0};
  void* base = nullptr;
  if (p.is_paged) {
    extents[1] = static_cast<cuuint64_t>(p.paged.page_size);
    extents[2] = static_cast<cuuint64_t>(p.paged.pages);
    strides[0] = dim;
    strides[1] = static_cast<cuuint64_t>(p.paged.page_stride);
    base = const_cast<std::uint8_t*>(p.paged.cache);
  } else {
    strides[0] = strides[1] = static_cast<cuuint64_t>(p.contiguous.codes.strides[0]);
    base = const_cast<std::uint8_t*>(p.contiguous.codes.data);
  }
  const cuuint32_t box[3] = {128, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = hardware().encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, base, extents, strides, box, steps,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(ErrorKind::internal, text::format("tensor map: error {}", static_cast<int>(result)));
  return map;
}

/// How the keys' codes get into shared memory. TMA wants addresses and strides in multiples of 16 bytes, keys that do
/// not overlap, and boxes of at least one swizzle pattern (8 keys) within a page.
void choose_loader(Params& p) {
  const std::uint8_t* const base = p.is_paged ? p.paged.cache : p.contiguous.codes.data;
  const std::int64_t stride = p.is_paged ? p.paged.page_stride : p.contiguous.codes.strides[0];
  p.code_alignment = multiple(base, stride, 16) ? 16 : multiple(base, stride, 4) ? 4 : 1;
  const bool there = p.keys > 0 && base != nullptr && (!p.is_paged || p.paged.pages > 0);
  const bool described =
      p.is_paged ? p.paged.page_size >= 8 && p.paged.pages < (std::int64_t{1} << 31) - 1 : stride >= p.head_dim;
  constexpr std::int64_t kStrideLimit = std::int64_t{1} << 40;
  p.loader = there && described && p.code_alignment == 16 && stride < kStrideLimit && !tuning().plain_loader
                 ? Loader::tma
                 : Loader::plain;
}

}  // namespace

std::byte* start_of(std::byte* workspace) {
  return workspace + (256 - reinterpret_cast<std::uintptr_t>(workspace) % 256) % 256;
}

Params params_of(const PlanState& state, const Problem& problem) {
  const Shape& shape = state.shape;
  const Options& options = state.options;
  Params p{};
  p.q = problem.q.data;
  p.q_row = problem.q.strides[0];
  p.q_head = problem.q.strides[1];
  p.q_aligned = multiple(p.q, p.q_row, 16) && p.q_head % 16 == 0;
  p.weights = problem.weights.data;
  p.weight_row = problem.weights.strides[0];
  p.ks = problem.ks.data, p.ks_stride = problem.ks.strides[0];
  p.ke = problem.ke.data, p.ke_stride = problem.ke.strides[0];
  p.row_request = problem.row_request.data, p.row_request_stride = problem.row_request.strides[0];
  p.rows = static_cast<std::int32_t>(shape.rows);
  p.heads = static_cast<std::int32_t>(shape.heads);
  p.head_dim = static_cast<std::int32_t>(shape.head_dim);
  p.requests = static_cast<std::int32_t>(shape.requests);
  p.rows_per_request =
      static_cast<std::int32_t>(std::max<std::int64_t>(shape.rows / std::max<std::int64_t>(shape.requests, 1), 1));
  p.is_paged = shape.paged;
  if (shape.paged) {
    p.paged = std::get<PagedKeys>(problem.keys);
  } else {
    p.contiguous = std::get<ContiguousKeys>(problem.keys);
  }
  p.keys = static_cast<std::int32_t>(shape.keys);
  const Shard shard = shard_of(options, shape.keys);
  p.first_key = shard.first_key;
  p.total_keys = shard.total_keys;
  p.always_first = options.always_first;
  p.always_last = options.always_last;
  p.top_k = static_cast<std::int32_t>(options.top_k);
  p.order = options.order;
  p.base = options.index_base;
  choose_loader(p);
  if (p.is_paged) p.page_shift = std::countr_zero(static_cast<std::uint32_t>(p.paged.page_size));
  p.scales_together = !p.is_paged && p.contiguous.scales.strides[0] == 1 && multiple(p.contiguous.scales.data, 0, 16);
  return p;
}

void set_outputs(Params& p, const Options& options, const Selection& selection) {
  p.indices = selection.indices.data;
  p.indices_row = selection.indices.strides[0], p.indices_slot = selection.indices.strides[1];
  p.lengths = selection.lengths.data;
  p.lengths_stride = selection.lengths.strides[0];
  p.scores = options.scores ? selection.scores.data : nullptr;
  p.scores_row = selection.scores.strides[0], p.scores_slot = selection.scores.strides[1];
}

Call make_call(const PlanState& state, const Problem& problem, std::byte* workspace) {
  Call call;
  call.layout = layout_of(state.shape, state.options, hardware().multiprocessors);
  Params& p = call.params = params_of(state, problem);
  p.chunks = call.layout.chunks;
  p.row_stride = static_cast<std::int64_t>(p.chunks) * call.layout.capacity;
  p.blocks = call.layout.blocks;
  p.sample_keys = call.layout.sample_keys;
  p.capacity = call.layout.capacity;
  std::byte* const base = call.base = start_of(workspace);
  const Layout& at = call.layout;
  p.counters = reinterpret_cast<DeviceCounters*>(base + at.counters);
  p.buffers = reinterpret_cast<Entry*>(base + at.buffers);
  p.counts = reinterpret_cast<std::uint32_t*>(base + at.counts);
  p.ranks = reinterpret_cast<std::uint32_t*>(base + at.ranks);
  p.thresholds = reinterpret_cast<float*>(base + at.thresholds);
  p.repeats = reinterpret_cast<std::uint32_t*>(base + at.repeats);
  if (p.loader == Loader::tma) {
    p.box_rows =
        std::min(p.is_paged ? p.paged.page_size : call.layout.kernel.stage_keys, call.layout.kernel.stage_keys);
    call.map = encode_map(p, p.box_rows);
    call.sample_map = encode_map(p, 8);
  }
  return call;
}

FewLaunch few_launch(const Call& call, int pass) {
  const Params& p = call.params;
  const FewLayout& at = call.layout.few;
  FewLaunch launch;
  FewParams& few = launch.few;
  few.sizes = at.sizes;
  few.first_row = pass * at.rows;
  few.box_rows = p.is_paged ? std::min(p.paged.page_size, kFewTile) : kFewTile;
  few.backwards = pass % 2 != 0;
  std::byte* const zeroed = call.base + at.zeroed + static_cast<std::size_t>(pass) * at.pass_bytes;
  few.arrived = reinterpret_cast<std::uint32_t*>(zeroed);
  few.listed = reinterpret_cast<std::uint32_t*>(zeroed + 128);
  few.first_histogram = reinterpret_cast<std::uint32_t*>(zeroed + 256);
  few.later_histograms = reinterpret_cast<std::uint32_t*>(call.base + at.later_histograms);
  few.lists = reinterpret_cast<std::uint32_t*>(call.base + at.lists);
  few.counts = reinterpret_cast<FewCounts*>(call.base + at.counts);
  few.winners = reinterpret_cast<Entry*>(call.base + at.winners);
  if (p.loader == Loader::tma) launch.map = encode_map(p, few.box_rows);
  return launch;
}

}  // namespace dosa::cuda
