// One launch for few rows (decode, next_n): every score of the call stays in the shared memory of the chip, and the
// exact Top-K is found there. Up to four rows whose scores fit beside ring and queries: 132 SMs x at most 170 KB
// are 5.4 M scores (one row), 1.1 M a row for four rows of 32 heads. The plan takes it wherever one pass will do
// (few_layout.cpp).
//
// Account for 1 row, H = 32, D = 128, 1M keys, on 132 SMs:
//   memory         132 bytes a key: 138 MB, 32 to 35 us at 3.9 to 4.3 TB/s. All else must stay under it:
//                  an SM has about 450 cycles for each tile of 64 keys.
//   tensor cores   64 * 32 * 128 / 4096 = 64 cycles a tile and row (256 for 4 rows)
//   shared memory  8 KiB in, 8 KiB of A and 4 KiB of B a tile: 160 of 450 cycles
//   epilogue       16 accumulators a thread: 16 FMNMX, 16 FMUL or FFMA, 16 for sums, shuffles, store and loop: about 60
//                  issue slots a tile and row on each scheduler
//   ring           20 stages of 8.25 KiB (9 for 4 rows); about 40 KB in flight an SM cover 4.3 TB/s x 1.2 us
//   selection      one histogram pass over 8,000 scores an SM, 2 grid barriers of about 1.5 us (4 where scores crowd in
//                  one bin), 16 KiB of bins and about 10 KiB of listed keys read by every SM from L2
// Keys are M, heads are N in their natural order: 8 heads a thread, the eight chains lie over the four lanes of a quad,
// two shuffles add them up in the served order. Padding 1 row to the 128 columns of the big kernel costs four times the
// epilogue.
#include "cuda/few.cuh"
#include "cuda/few_select.cuh"
#include "cuda/heads.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma_narrow.cuh"
#include "cuda/stream.cuh"

namespace dosa::cuda {
namespace {

/// The tiles of one block: contiguous, in key order.
struct FewWalk {
  Part part;
  std::int32_t first_key = 0, tiles = 0;
};

__device__ FewWalk few_walk(const Params& p, const FewParams& f, DeviceRow& row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  FewWalk walk;
  if (lane < f.sizes.rows) row = device_row(p, f.first_row + lane);
  const std::uint32_t waiting = __ballot_sync(kAllLanes, row.competes());
  if (waiting == 0) return walk;
  walk.part = next_part(waiting, row);
  const std::int32_t begin = walk.part.first / kFewTile;
  const std::int64_t all = (walk.part.last + kFewTile - 1) / kFewTile - begin;
  const auto from = static_cast<std::int32_t>(all * blockIdx.x / gridDim.x);
  const auto to = static_cast<std::int32_t>(all * (blockIdx.x + 1) / gridDim.x);
  walk.first_key = (begin + from) * kFewTile;
  walk.tiles = to - from;
  return walk;
}

/// Where 16-byte piece `piece` of vector `vector` lies in a panelled, swizzled tile of `vectors` vectors.
__device__ inline int swizzled(int vector, int piece, int vectors) {
  return piece / 8 * vectors * 128 + vector * 128 + ((piece % 8 ^ (vector & 7)) << 4);
}

template <int kPanels>
__device__ void fill_tile_tma(const Params& p, const FewParams& f, const CUtensorMap& map, std::uint8_t* codes,
                              float* scales, std::uint64_t* full, const Part& part, std::int32_t first) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t box = f.box_rows;
  std::uint32_t bytes = 0;
  bool loose = false;
  const std::int32_t key = first + lane * box;
  if (lane * box < kFewTile) {
    const std::int32_t page = box_page(p, part, key, box);
    const std::int32_t row = p.is_paged ? key & (p.paged.page_size - 1) : key;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      ptx::tma_load(codes + panel * kFewTile * 128 + lane * box * 128, &map, full, panel * 128, row, page);
    bytes = static_cast<std::uint32_t>(kPanels * 128 * box);
    if (const float* const from = box_scales(p, key, box, page); from != nullptr) {
      ptx::bulk_load(scales + lane * box, from, static_cast<std::uint32_t>(4 * box), full);
      bytes += static_cast<std::uint32_t>(4 * box);
    } else {
      loose = true;
    }
  }
  for (std::uint32_t waiting = __ballot_sync(kAllLanes, loose); waiting != 0; waiting &= waiting - 1) {
    const std::int32_t at = (__ffs(static_cast<int>(waiting)) - 1) * box;
    const KeySource keys = keys_of_request(p, part.request);
    for (int j = lane; j < box; j += 32) {
      const KeyAddress address = visible_key(p, keys, part, first + at + j);
      scales[at + j] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
    }
  }
  ptx::mbarrier_arrive_expect(full, bytes);
}

/// The same bytes by ordinary copies of one warp.
template <int kPanels>
__device__ void fill_tile_plain(const Params& p, std::uint8_t* codes, float* scales, std::uint64_t* full,
                                const Part& part, std::int32_t first) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const KeySource keys = keys_of_request(p, part.request);
  for (int i = lane; i < kFewTile; i += 32) {
    const KeyAddress address = visible_key(p, keys, part, first + i);
    scales[i] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
  }
  constexpr int kPieces = kPanels * 8;
  for (int i = lane; i < kFewTile * kPieces; i += 32) {
    const int vector = i / kPieces, piece = i % kPieces;
    std::uint8_t* const to = codes + swizzled(vector, piece, kFewTile);
    const KeyAddress address =
        piece * 16 < p.head_dim ? visible_key(p, keys, part, first + vector) : KeyAddress{nullptr, nullptr};
    ptx::copy_piece(to, address.codes != nullptr ? address.codes + piece * 16 : nullptr, p.code_alignment);
  }
  ptx::copy_wait_all();
  ptx::fence_async_proxy();
  ptx::mbarrier_arrive(full);
}

/// Heads in their natural order, 32 columns for each block of heads; padding heads have code 0 and weight -0.
template <int kHeadBlocks, int kPanels>
__device__ void load_few_queries(const Params& p, const FewParams& f, std::uint8_t* q, float* weights) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kPieces = kPanels * 8;
  for (int i = thread; i < f.sizes.columns * kPieces; i += kFewConsumers) {
    const int piece = i % kPieces, column = i / kPieces;
    const int row = column / (32 * kHeadBlocks), head = column % (32 * kHeadBlocks), t = f.first_row + row;
    *reinterpret_cast<uint4*>(q + swizzled(column, piece, f.sizes.columns)) =
        row < f.sizes.rows ? query_piece(p, t, head, piece) : make_uint4(0, 0, 0, 0);
  }
  // Of each block of 32 heads, the 8 of one lane of a quad together: 8i + 2t + e at 8t + 2i + e.
  for (int column = thread; column < f.sizes.columns; column += kFewConsumers) {
    const int row = column / (32 * kHeadBlocks), t = f.first_row + row;
    const int place = column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
    weights[place] = row < f.sizes.rows ? weight_of(p, t, column % (32 * kHeadBlocks)) : -0.0F;
  }
}

/// Adds 8 heads of a lane to its two chains of two keys. The first block starts with head group 1: the served order.
template <bool kFirst>
__device__ void lane_chain(const float* d, const float (&w)[8], float (&sum)[2][2]) {
#pragma unroll
  for (int key = 0; key < 2; ++key)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto r = [&](int group) { return relu(d[4 * group + 2 * key + e]); };
      float& x = sum[key][e];
      if constexpr (kFirst) {
        x = __fmul_rn(w[2 + e], r(1));
        x = __fmaf_rn(w[e], r(0), x);
      } else {
        x = __fmaf_rn(w[e], r(0), x);
        x = __fmaf_rn(w[2 + e], r(1), x);
      }
      x = __fmaf_rn(w[4 + e], r(2), x);
      x = __fmaf_rn(w[6 + e], r(3), x);
    }
}

/// The served score of the first key in lane 0 of the quad, of the second in lane 1. Adds commute, so which lane adds
/// changes no bit.
__device__ inline float quad_score(const float (&sum)[2][2], const float (&scale)[2], bool odd) {
  const float first = __fmul_rn(__fadd_rn(sum[0][0], sum[0][1]), scale[0]);
  const float second = __fmul_rn(__fadd_rn(sum[1][0], sum[1][1]), scale[1]);
  const float pair = __fadd_rn(odd ? second : first, __shfl_xor_sync(kAllLanes, odd ? first : second, 1));
  return __fadd_rn(pair, __shfl_xor_sync(kAllLanes, pair, 2));
}

template <int kHeadBlocks, int kBlocks, int kPanels>
__device__ void score_tiles(const FewParams& f, FewControl& s, std::uint8_t* memory, const FewWalk& walk) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(kAllLanes, thread / 32, 0);  // uniform, so that descriptors lie in uniform registers
  const int group = warp / 4, g = lane / 4, t = lane % 4;
  const FewSizes sizes = f.sizes;
  const float* const scales = reinterpret_cast<const float*>(memory + sizes.scales_at());
  const float* const weights = reinterpret_cast<const float*>(memory + sizes.weights_at()) + 8 * t;
  float* const scores = reinterpret_cast<float*>(memory + sizes.scores_at());
  const int row_scores = sizes.tiles * kFewTile;
  const int local = warp % 4 * 16 + g;
  const int blocks = sizes.rows * kHeadBlocks;
  const auto codes = ptx::shared_address(memory) + static_cast<std::uint32_t>(sizes.codes_at());
  const ptx::Descriptor b_of(ptx::shared_address(memory));
  Ring ring;
  ring.stage = group;
  for (int i = group; i < walk.tiles; i += kFewGroups) {
    const int tile = f.backwards ? walk.tiles - 1 - i : i;
    ptx::mbarrier_wait(&s.full[ring.stage], ring.phase);
    const float scale[2] = {scales[ring.stage * kFewTile + local], scales[ring.stage * kFewTile + local + 8]};
    const ptx::Descriptor a_of(codes + static_cast<std::uint32_t>(ring.stage * sizes.tile_bytes()));
    for (int first = 0; first < blocks; first += kBlocks) {
      float d[16 * kBlocks];
      const auto column_bytes = static_cast<std::uint32_t>(first * 32 * 128);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4 * kPanels; ++k) {
        const std::uint32_t a = static_cast<std::uint32_t>(k / 4 * kFewTile * 128 + k % 4 * 32);
        const std::uint32_t b = column_bytes + static_cast<std::uint32_t>(k / 4 * sizes.columns * 128 + k % 4 * 32);
        if (k == 0) {
          ptx::wgmma_k32<false>(d, a_of.at(a), b_of.at(b));
        } else {
          ptx::wgmma_k32<true>(d, a_of.at(a), b_of.at(b));
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(d);
      if (first + kBlocks >= blocks) {  // codes and scales are read: the stage may be filled again
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(&s.empty[ring.stage]);
      }
      float sum[2][2];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int block = first + b;
        if (block < blocks) {
          const float4 low = *reinterpret_cast<const float4*>(weights + block * 32);
          const float4 high = *reinterpret_cast<const float4*>(weights + block * 32 + 4);
          const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
          if (b % kHeadBlocks == 0) {
            lane_chain<true>(d + 16 * b, w, sum);
          } else {
            lane_chain<false>(d + 16 * b, w, sum);
          }
          if (b % kHeadBlocks == kHeadBlocks - 1) {
            const float score = quad_score(sum, scale, t % 2 != 0);
            if (t < 2)
              scores[block / kHeadBlocks * row_scores + tile * kFewTile + local + 8 * t] =
                  score == score ? score : __uint_as_float(kNeverSelected);
          }
        }
      }
    }
    ring.stage += kFewGroups;
    if (ring.stage >= sizes.stages) ring.stage -= sizes.stages, ring.phase ^= 1;
  }
}

template <int kHeadBlocks, int kBlocks, int kPanels>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_rows_kernel(const __grid_constant__ Params p, const __grid_constant__ FewParams f,
                    const __grid_constant__ CUtensorMap map) {
  static_assert(kBlocks % kHeadBlocks == 0, "a row's chains end in the MMA they begin in");
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* const memory = unaligned + (1024U - ptx::shared_address(unaligned) % 1024U) % 1024U;
  auto& s = *reinterpret_cast<FewControl*>(memory + f.sizes.control_at());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == kFewConsumers) {
    for (int i = 0; i < f.sizes.stages; ++i) {
      ptx::mbarrier_init(&s.full[i], 32);
      ptx::mbarrier_init(&s.empty[i], 4);
    }
    ptx::fence_barrier_init();
    if (p.loader == Loader::tma) ptx::tma_prefetch_map(&map);
  }
  DeviceRow row;
  const FewWalk walk = few_walk(p, f, row);
  if (warp == 0 && lane < f.sizes.rows) {
    s.rows[lane] = row;
    s.search[lane] = {0, static_cast<std::uint32_t>(max(row.free_slots, 0)), 0, 32, 0, false};
  }
  __syncthreads();
  std::uint8_t* const codes = memory + f.sizes.codes_at();
  if (warp == kFewWarps) {
    auto* const scales = reinterpret_cast<float*>(memory + f.sizes.scales_at());
    const bool tma = p.loader == Loader::tma;
    Ring ring;
    ring.phase = 1;  // every stage starts empty
    for (int i = 0; i < walk.tiles; ++i) {
      const int tile = f.backwards ? walk.tiles - 1 - i : i;
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.phase);
      std::uint8_t* const to = codes + ring.stage * f.sizes.tile_bytes();
      float* const scales_to = scales + ring.stage * kFewTile;
      std::uint64_t* const full = &s.full[ring.stage];
      const std::int32_t first = walk.first_key + tile * kFewTile;
      if (tma) {
        fill_tile_tma<kPanels>(p, f, map, to, scales_to, full, walk.part, first);
      } else {
        fill_tile_plain<kPanels>(p, to, scales_to, full, walk.part, first);
      }
      if (++ring.stage == f.sizes.stages) ring.stage = 0, ring.phase ^= 1;
    }
    if (lane == 0) count(tma ? &p.counters->stages_tma : &p.counters->stages_plain, walk.tiles);
    return;
  }
  load_few_queries<kHeadBlocks, kPanels>(p, f, memory, reinterpret_cast<float*>(memory + f.sizes.weights_at()));
  ptx::fence_async_proxy();
  // Histograms of later digits; the grid meets before they are used.
  const int later = f.sizes.rows * (kFewLevels - 1) * kFewBins;
  for (int i = static_cast<int>(blockIdx.x) * kFewConsumers + thread; i < later;
       i += static_cast<int>(gridDim.x) * kFewConsumers)
    f.later_histograms[i] = 0;
  FewSelection::everyone();
  score_tiles<kHeadBlocks, kBlocks, kPanels>(f, s, memory, walk);
  FewSelection::everyone();
  FewSelection selection{p,
                         f,
                         s,
                         reinterpret_cast<std::uint32_t*>(memory + f.sizes.scores_at()),
                         reinterpret_cast<std::uint32_t*>(memory + f.sizes.bits_at()),
                         reinterpret_cast<std::uint32_t*>(codes),
                         walk.first_key,
                         walk.tiles * kFewTile,
                         thread,
                         lane,
                         warp};
  selection.run();
}

template <int kPanels>
const void* few_kernel_of(int head_blocks, int blocks) {
  if (head_blocks == 4) return reinterpret_cast<const void*>(&few_rows_kernel<4, 4, kPanels>);
  if (head_blocks == 2)
    return blocks == 2 ? reinterpret_cast<const void*>(&few_rows_kernel<2, 2, kPanels>)
                       : reinterpret_cast<const void*>(&few_rows_kernel<2, 4, kPanels>);
  return blocks == 1   ? reinterpret_cast<const void*>(&few_rows_kernel<1, 1, kPanels>)
         : blocks == 2 ? reinterpret_cast<const void*>(&few_rows_kernel<1, 2, kPanels>)
                       : reinterpret_cast<const void*>(&few_rows_kernel<1, 4, kPanels>);
}

}  // namespace

const void* few_kernel(int head_blocks, int blocks_an_mma, int panels) {
  return panels == 1 ? few_kernel_of<1>(head_blocks, blocks_an_mma) : few_kernel_of<2>(head_blocks, blocks_an_mma);
}

}  // namespace dosa::cuda
