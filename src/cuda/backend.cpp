// The CUDA backend's table: what it refuses, what it plans, and the launches of a run.
#include "contract/backend.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "contract/row.hpp"
#include "contract/text.hpp"
#include "cuda/call.hpp"
#include "cuda/hardware.hpp"
#include "cuda/layout.hpp"
#include "cuda/merge.cuh"
#include "cuda/staging.hpp"

namespace dosa::detail {
namespace {

using namespace dosa::cuda;

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

/// Few rows whose scores fit in the shared memory of the chip: a launch for all of them, or two.
void launch_few(const Call& call, cudaStream_t stream) {
  const FewLayout& few = call.layout.few;
  const int shared_bytes = few.sizes.bytes() + 1024;  // the start is rounded up to a multiple of 1024
  check(cudaMemsetAsync(call.params.counters, 0,
                        few.zeroed - call.layout.counters + static_cast<std::size_t>(few.passes) * few.pass_bytes,
                        stream),
        "counters");
  check(cudaFuncSetAttribute(few.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "shared memory");
  Params p = call.params;
  for (int pass = 0; pass < few.passes; ++pass) {
    FewLaunch launch = few_launch(call, pass);
    void* arguments[] = {&p, &launch.few, &launch.map};
    // Cooperative: blocks wait for each other, so all of them must run at once, whatever else the device does.
    check(cudaLaunchCooperativeKernel(few.function, dim3(static_cast<unsigned>(few.grid)), dim3(kFewThreads), arguments,
                                      static_cast<std::size_t>(shared_bytes), stream),
          "few rows");
  }
}

void queue(const PlanState& state, const Problem& problem, const Selection& selection, void* workspace,
           void* stream_handle) {
  if (state.shape.rows == 0) return;
  const OnDevice current(state.shape.device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  Call call = make_call(state, problem, static_cast<std::byte*>(workspace));
  Params& p = call.params;
  set_outputs(p, state.options, selection);
  if (call.layout.few.applies()) return launch_few(call, stream);
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
  const std::string how = layout.few.applies() ? text::format("{} rows a launch over {} blocks, all scores on the chip",
                                                              layout.few.rows, layout.few.grid)
                                               : text::format("{} rows a block, keys in {} piece{}", layout.kernel.rows,
                                                              layout.chunks, layout.chunks == 1 ? "" : "s");
  state.why = text::format("cuda: {}; {}{}", hardware().why, how,
                           staged ? "; host tensors are copied to the device and back" : "");
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
