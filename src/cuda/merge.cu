// Rows whose keys were split over the chip: thresholds from a sample, and the exact merge of the chunks' candidates.
//
// Account: a block a row. A row's candidates are 2 to 3 K entries of 8 bytes in L2 (K = 2048: 32 to 48 KiB); each pass
// over them is a few loads of each of 1,024 threads, and the radix search takes one pass to find the digits that differ
// and about three to settle them. No launch moves more than a few MiB: latency is all there is.
#include "cuda/merge.cuh"
#include "cuda/select.cuh"

namespace dosa::cuda {
namespace {

constexpr int kWarps = 32;
constexpr int kMergeThreads = 32 * kWarps;
constexpr int kMaxChunks = 512;
constexpr std::uint32_t kGathered = 12288;  // entries of a row that fit beside the selected ones: 96 KiB
constexpr std::uint32_t kWords = 256;       // bits of a span, a warp: 2 * 4 * 256 * 32 = 64 KiB where the entries were

struct Scratch {
  alignas(16) std::uint32_t team[Team<kWarps>::kWords];
  std::uint32_t counts[kMaxChunks];
  std::uint32_t starts[kMaxChunks + 1];  // of chunks, then of slices
  std::uint32_t total, flag;
};

/// starts[1..count] become running sums, starts[0] = 0; the sum. The whole block calls it after a barrier; thread 0's
/// result counts.
__device__ std::uint32_t prefix(std::uint32_t* starts, int count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t before = 0;
  if (threadIdx.x >= 32) return 0;
  for (int base = 0; base < count; base += 32) {
    const std::uint32_t mine = base + lane < count ? starts[base + lane + 1] : 0;
    std::uint32_t all;
    const std::uint32_t below = sum_of_lanes_below(mine, &all);
    if (base + lane < count) starts[base + lane + 1] = before + below + mine;
    before += all;
  }
  if (lane == 0) starts[0] = 0;
  return before;
}

/// A row's entries, in shared memory where they fit (every pass over them would else pay L2's latency again and again).
__device__ Pieces gather(const Params& p, std::int32_t t, Scratch& s, Entry* entries) {
  const std::uint32_t* const counts = p.counts + static_cast<std::int64_t>(t) * p.chunks;
  const Entry* const from = p.buffers + static_cast<std::int64_t>(t) * p.row_stride;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < p.chunks) s.starts[thread + 1] = s.counts[thread] = counts[thread];
  __syncthreads();
  const std::uint32_t sum = prefix(s.starts, p.chunks);
  if (thread == 0) s.total = sum;
  __syncthreads();
  if (s.total > kGathered) return {from, p.capacity, s.counts, p.chunks, p.chunks >= kWarps ? 1 : kWarps / p.chunks};
  // A piece is shared by as many warps as there are to go round.
  const Team<kWarps> team(thread / 32, s.team);
  const Pieces pieces{from, p.capacity, s.counts, p.chunks, p.chunks >= kWarps ? 1 : kWarps / p.chunks};
  for (int v = team.warp; v < pieces.slices(); v += kWarps) {
    const Entry* slice;
    std::uint32_t size;
    pieces.slice(v, slice, size);
    Entry* to = entries + s.starts[v / pieces.split] +
                (slice - (from + static_cast<std::int64_t>(v / pieces.split) * p.capacity)) + team.lane;
    team.each(slice, size, [&](const Entry& entry, bool valid) {
      if (valid) *to = entry;
      to += 32;
    });
  }
  __syncthreads();
  return {entries, 0, &s.total, 1, kWarps};
}

__global__ void __launch_bounds__(kMergeThreads) thresholds_kernel(const Params p) {
  extern __shared__ std::uint64_t memory[];
  __shared__ Scratch s;
  const Team<kWarps> team(static_cast<int>(threadIdx.x) / 32, s.team);
  const auto t = static_cast<std::int32_t>(blockIdx.x);
  float threshold = __int_as_float(0xff800000);
  if (device_row(p, t).competes()) {
    const std::uint32_t rank = p.ranks[t];
    const Pieces pieces = gather(p, t, s, reinterpret_cast<Entry*>(memory));
    if (rank > 0 && rank < s.total) threshold = score_of(team.largest(pieces, team.bound(pieces, rank)));
  }
  if (threadIdx.x == 0) {
    p.thresholds[t] = threshold;
    if (threshold != __int_as_float(0xff800000)) count(&p.counters->sampled_rows, 1);
  }
}

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const Params p) {
  extern __shared__ std::uint64_t memory[];  // gathered entries (later bits), 2 * top_k selected ones
  __shared__ Scratch s;
  const auto t = static_cast<std::int32_t>(blockIdx.x);
  if (p.mode == Mode::repeat && p.repeats[t] == 0) return;
  const Team<kWarps> team(static_cast<int>(threadIdx.x) / 32, s.team);
  const DeviceRow row = device_row(p, t);
  const auto wanted = static_cast<std::uint32_t>(row.free_slots);
  auto* const entries = reinterpret_cast<Entry*>(memory);
  Entry* const selected = entries + kGathered;
  Pieces pieces{entries, 0, &s.total, 1, 1};
  std::uint32_t have = 0;
  if (row.competes()) {
    pieces = gather(p, t, s, entries);
    have = s.total;
  }
  if (p.mode == Mode::stream) {
    const bool again =
        p.thresholds != nullptr && row.competes() && have < wanted && p.thresholds[t] != __int_as_float(0xff800000);
    if (threadIdx.x == 0) {
      p.repeats[t] = again ? 1 : 0;
      if (again) count(&p.counters->repeats, 1);
    }
    if (again) return;
  }
  const std::uint32_t kept = min(have, wanted);
  if (kept > 0) {
    const std::uint64_t limit = have > wanted ? team.bound(pieces, wanted) : ~std::uint64_t{0};
    // How many each slice keeps, then where each slice's begin: the order of the entries stays.
    __syncthreads();
    for (int v = team.warp; v < pieces.slices(); v += kWarps) {
      const Entry* from;
      std::uint32_t size, keep = 0;
      pieces.slice(v, from, size);
      team.each(from, size,
                [&](const Entry& entry, bool valid) { keep += valid && order_key(entry) <= limit ? 1U : 0U; });
      keep = __reduce_add_sync(kAllLanes, keep);
      if (team.lane == 0) s.starts[v + 1] = keep;
    }
    __syncthreads();
    prefix(s.starts, pieces.slices());
    __syncthreads();
    for (int v = team.warp; v < pieces.slices(); v += kWarps) {
      const Entry* from;
      std::uint32_t size, at = s.starts[v];
      pieces.slice(v, from, size);
      team.each(from, size, [&](const Entry& entry, bool valid) {
        const bool keep = valid && order_key(entry) <= limit;
        const std::uint32_t votes = __ballot_sync(kAllLanes, keep);
        if (keep) selected[at + static_cast<std::uint32_t>(__popc(votes & ((1U << team.lane) - 1)))] = entry;
        at += static_cast<std::uint32_t>(__popc(votes));
      });
    }
  }
  __syncthreads();
  const Entry* sorted = selected;
  if (p.order == Order::score) {
    if (team.warp == 0) {
      const Entry* const result = sort_by_score(Team<1>(0, s.team), selected, selected + p.top_k, kept);
      if (team.lane == 0) s.flag = result == selected ? 0 : 1;
    }
    __syncthreads();
    sorted = s.flag == 0 ? selected : selected + p.top_k;
  }
  write_row<kWords>(team, p, t, row, sorted, static_cast<std::int32_t>(kept), reinterpret_cast<std::uint32_t*>(memory));
}

__global__ void fill_matrix_kernel(const Params p) {
  const std::int64_t cells = static_cast<std::int64_t>(p.rows) * p.keys;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < cells;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    p.matrix[i / p.keys * p.matrix_row + i % p.keys * p.matrix_key] = __int_as_float(0xff800000);
}

}  // namespace

namespace {

template <class Function>
cudaError_t launch_rows(Function* kernel, const Params& p, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(p.rows), kMergeThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_thresholds(const Params& p, cudaStream_t stream) {
  return launch_rows(thresholds_kernel, p, kGathered * sizeof(Entry), stream);
}

cudaError_t launch_merge(const Params& p, cudaStream_t stream) {
  return launch_rows(merge_kernel, p, (kGathered + 2 * static_cast<std::size_t>(p.top_k)) * sizeof(Entry), stream);
}

cudaError_t launch_fill_matrix(const Params& p, cudaStream_t stream) {
  fill_matrix_kernel<<<1024, 256, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dosa::cuda
