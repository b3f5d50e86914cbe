// The CUDA backend's table: what it refuses, what it plans, and the launches of a run.
#include "contract/backend.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "contract/row.hpp"
#include "contract/text.hpp"
#include "cuda/layout.hpp"
#include "cuda/merge.cuh"
#include "cuda/params.hpp"
#include "cuda/staging.hpp"

namespace dosa::detail {
namespace {

using namespace dosa::cuda;

struct Hardware {
  bool usable = false;
  int multiprocessors = 0;
  std::string why;
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
};

Hardware look() {
  Hardware found;
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) {
    found.why =
        text::format("built for sm_90a with CUDA {}.{}; no GPU here ({})", CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10, status != cudaSuccess ? cudaGetErrorString(status) : "no device");
    return found;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device properties");
  if (properties.major != 9 || properties.minor != 0) {
    found.why = text::format("built for sm_90a; device 0 is {} (compute capability {}.{}), wanted a Hopper GPU (9.0)",
                             properties.name, properties.major, properties.minor);
    return found;
  }
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      entry == nullptr) {
    found.why = "the driver has no cuTensorMapEncodeTiled, wanted a driver for CUDA 12 or later";
    return found;
  }
  found.encode = reinterpret_cast<decltype(found.encode)>(entry);
  found.usable = true;
  found.multiprocessors = properties.multiProcessorCount;
  found.why = text::format("sm_90a, CUDA {}.{}, on {} ({} SMs)", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                           properties.name, properties.multiProcessorCount);
  return found;
}

const Hardware& hardware() {
  static const Hardware kFound = [] {
    try {
      return look();
    } catch (const Error& error) {
      Hardware none;
      none.why = error.what();
      return none;
    }
  }();
  return kFound;
}

/// The plan's device is current while this lives.
class OnDevice {
 public:
  explicit OnDevice(const Device& device) {
    check(cudaGetDevice(&before_), "current device");
    if (device.kind == DeviceKind::cuda && device.index != before_) check(cudaSetDevice(device.index), "device");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

struct Call {
  Params params{};
  Layout layout;
  CUtensorMap map{}, sample_map{};
};

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

std::byte* start_of(std::byte* workspace) {
  return workspace + (256 - reinterpret_cast<std::uintptr_t>(workspace) % 256) % 256;
}

Call make_call(const PlanState& state, const Problem& problem, std::byte* workspace) {
  const Shape& shape = state.shape;
  const Options& options = state.options;
  Call call;
  call.layout = layout_of(shape, options, hardware().multiprocessors);
  Params& p = call.params;
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
  p.chunks = call.layout.chunks;
  p.row_stride = static_cast<std::int64_t>(p.chunks) * call.layout.capacity;
  p.blocks = call.layout.blocks;
  p.sample_keys = call.layout.sample_keys;
  p.capacity = call.layout.capacity;
  std::byte* const base = start_of(workspace);
  const Layout& at = call.layout;
  p.counters = reinterpret_cast<DeviceCounters*>(base + at.counters);
  p.buffers = reinterpret_cast<Entry*>(base + at.buffers);
  p.counts = reinterpret_cast<std::uint32_t*>(base + at.counts);
  p.ranks = reinterpret_cast<std::uint32_t*>(base + at.ranks);
  p.thresholds = reinterpret_cast<float*>(base + at.thresholds);
  p.repeats = reinterpret_cast<std::uint32_t*>(base + at.repeats);
  choose_loader(p);
  if (p.is_paged) p.page_shift = std::countr_zero(static_cast<std::uint32_t>(p.paged.page_size));
  p.scales_together = !p.is_paged && p.contiguous.scales.strides[0] == 1 && multiple(p.contiguous.scales.data, 0, 16);
  if (p.loader == Loader::tma) {
    p.box_rows =
        std::min(p.is_paged ? p.paged.page_size : call.layout.kernel.stage_keys, call.layout.kernel.stage_keys);
    call.map = encode_map(p, p.box_rows);
    call.sample_map = encode_map(p, 8);
  }
  return call;
}

void launch_stream(const Call& call, Mode mode, int chunks, cudaStream_t stream) {
  Params p = call.params;
  p.mode = mode;
  p.chunks = chunks;
  p.row_stride = static_cast<std::int64_t>(chunks) * p.capacity;
  const Kernel& kernel = call.layout.kernel;
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
        "shared memory");
  const int grid = std::min(call.layout.grid, p.blocks * chunks);
  CUtensorMap map = call.map, sample_map = call.sample_map;
  void* arguments[] = {&p, &map, &sample_map};
  check(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(grid)), dim3(384), arguments,
                         static_cast<std::size_t>(kernel.shared_bytes), stream),
        "scorer");
}

void queue(const PlanState& state, const Problem& problem, const Selection& selection, void* workspace,
           void* stream_handle) {
  if (state.shape.rows == 0) return;
  const OnDevice current(state.shape.device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  Call call = make_call(state, problem, static_cast<std::byte*>(workspace));
  Params& p = call.params;
  p.indices = selection.indices.data;
  p.indices_row = selection.indices.strides[0], p.indices_slot = selection.indices.strides[1];
  p.lengths = selection.lengths.data;
  p.lengths_stride = selection.lengths.strides[0];
  p.scores = state.options.scores ? selection.scores.data : nullptr;
  p.scores_row = selection.scores.strides[0], p.scores_slot = selection.scores.strides[1];
  check(cudaMemsetAsync(p.counters, 0, sizeof(DeviceCounters), stream), "counters");
  if (call.layout.chunks == 1) {
    launch_stream(call, Mode::fused, 1, stream);
    return;
  }
  const bool predicted = call.layout.sample_chunks > 0;
  if (predicted) {
    launch_stream(call, Mode::sample, call.layout.sample_chunks, stream);
    Params sampled = p;
    sampled.chunks = call.layout.sample_chunks;
    sampled.row_stride = static_cast<std::int64_t>(sampled.chunks) * sampled.capacity;
    check(launch_thresholds(sampled, stream), "thresholds");
  } else {
    call.params.thresholds = nullptr;
  }
  launch_stream(call, Mode::stream, call.layout.chunks, stream);
  p.mode = Mode::stream;
  check(launch_merge(p, stream), "merge");
  if (!predicted) return;
  launch_stream(call, Mode::repeat, call.layout.chunks, stream);
  p.mode = Mode::repeat;
  check(launch_merge(p, stream), "merge");
}

void plan_cuda(PlanState& state) {
  const Layout layout = layout_of(state.shape, state.options, hardware().multiprocessors);
  state.options.threads = 1;
  state.options.isa = Isa::portable;
  state.options.path = Path::dense;
  const bool staged = state.shape.device.kind == DeviceKind::cpu;
  state.workspace_bytes = staged ? 0 : layout.bytes;
  state.why =
      text::format("cuda: {}; {} rows a block, keys in {} piece{}{}", hardware().why, layout.kernel.rows, layout.chunks,
                   layout.chunks == 1 ? "" : "s", staged ? "; host tensors are copied to the device and back" : "");
}

void count_rows(const PlanState& state, const Problem& problem, Stats& stats) {
  stats.rows = stats.rows_model = state.shape.rows;
  if (state.shape.device.kind != DeviceKind::cpu) return;  // windows lie on the device: nothing is read back
  for (std::int64_t t = 0; t < state.shape.rows; ++t) {
    const Row row = make_row(problem, state.shape, state.options, t);
    RowReport report;
    report.retained_heads = static_cast<std::int32_t>(state.shape.heads);
    report.visible = row.free.size() + row.forced();
    report.survivors = report.exact = row.free.size();
    report.dot_products = static_cast<double>(row.free.size()) * static_cast<double>(state.shape.heads);
    stats.visible += report.visible;
    stats.survivors += report.survivors;
    stats.exact += report.exact;
    stats.dot_products += report.dot_products;
    stats.dense_dot_products += report.dot_products;
    if (!stats.row_reports.empty()) stats.row_reports[static_cast<std::size_t>(t)] = report;
  }
}

PlanState on_device(const PlanState& state) {
  PlanState moved = state;
  moved.shape.device = {DeviceKind::cuda, 0};
  return moved;
}

void run_cuda(const PlanState& state, const Problem& problem, const Selection& selection,
              std::span<std::byte> workspace, Carry, Stats& stats) {
  count_rows(state, problem, stats);
  if (state.shape.rows == 0) return;
  if (state.shape.device.kind == DeviceKind::cuda) {
    queue(state, problem, selection, workspace.data(), nullptr);
    return;
  }
  const PlanState moved = on_device(state);
  Staging staging(moved.shape.device);
  const Problem there = staging.upload(problem);
  const Selection results = staging.outputs(selection);
  const Layout layout = layout_of(state.shape, state.options, hardware().multiprocessors);
  auto* const memory = static_cast<std::byte*>(staging.allocate(layout.bytes));
  queue(moved, there, results, memory, nullptr);
  check(cudaDeviceSynchronize(), "run");
  DeviceCounters& counters = stats.device.emplace();
  check(cudaMemcpy(&counters, start_of(memory) + layout.counters, sizeof counters, cudaMemcpyDeviceToHost), "counters");
  staging.download(results, selection);
}

void scores_cuda(const PlanState& state, const Problem& problem, TensorView<float, 2> out) {
  if (state.shape.rows == 0 || state.shape.keys == 0) return;
  const bool staged = state.shape.device.kind == DeviceKind::cpu;
  const PlanState moved = on_device(state);
  Staging staging(moved.shape.device);
  const TensorView<float, 2> matrix = staged ? staging.output(out) : out;
  const PlanState& used = staged ? moved : state;
  const OnDevice current(used.shape.device);
  Call call = make_call(
      used, staged ? staging.upload(problem) : problem,
      static_cast<std::byte*>(staging.allocate(layout_of(used.shape, used.options, hardware().multiprocessors).bytes)));
  call.params.matrix = matrix.data;
  call.params.matrix_row = matrix.strides[0], call.params.matrix_key = matrix.strides[1];
  check(cudaMemset(call.params.counters, 0, sizeof(DeviceCounters)), "counters");
  check(launch_fill_matrix(call.params, nullptr), "fill");
  launch_stream(call, Mode::all_scores, call.layout.chunks, nullptr);
  check(cudaDeviceSynchronize(), "scores");
  if (staged) staging.download(matrix, out);
}

void stream_cuda(const PlanState& state, const Problem& problem, const Selection& selection, void* workspace,
                 void* stream) {
  queue(state, problem, selection, workspace, stream);
}

}  // namespace

const BackendTable* cuda_backend() noexcept {
  static constexpr BackendTable kTable{Backend::cuda, plan_cuda, run_cuda, scores_cuda, stream_cuda};
  return hardware().usable ? &kTable : nullptr;
}

const std::string& cuda_why() noexcept { return hardware().why; }

std::string cuda_refuses(const Shape& shape, const Options& options) {
  if (options.model != ScoreModel::sm90)
    return text::format("found score model {}, wanted sm90 (the one the tensor cores compute)", name(options.model));
  if (options.top_k > kMaxTopK) return text::format("found top_k {}, wanted at most {}", options.top_k, kMaxTopK);
  if (options.path == Path::dosa) return "found path dosa, wanted dense or auto";
  if (shape.rows >= (std::int64_t{1} << 31) - 64)
    return text::format("found {} rows, wanted fewer than 2^31", shape.rows);
  return "";
}

}  // namespace dosa::detail
