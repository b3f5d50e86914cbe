// One launch for few rows (decode, next_n): every score of the call stays in the shared memory of the chip, and the
// exact Top-K is found there. Up to four rows whose scores fit: 132 SMs x about 190 KB, 6 million scores.
//
// Account for 1 row, H = 32, D = 128, 1M keys, on 132 SMs:
//   memory         132 bytes a key: 138 MB, 32 to 35 us at 3.9 to 4.3 TB/s. All else must stay under it:
//                  an SM has about 450 cycles for each tile of 64 keys.
//   tensor cores   64 * 32 * 128 / 4096 = 64 cycles a tile and row (256 for 4 rows)
//   shared memory  8 KiB in, 8 KiB of A and 4 KiB of B a tile: 160 of 450 cycles (4 rows: 256, and 128 for weights)
//   epilogue       1 row: 16 accumulators a thread, 16 FMNMX, 16 FMUL or FFMA, 16 for sums, shuffles, store and loop;
//                  4 rows: 64 accumulators, about 190 instructions. Issue slots of each scheduler, a tile
//   ring           20 stages of 8 KiB (8 for 4 rows); about 40 KB in flight an SM cover 4.3 TB/s x 1.2 us
//   selection      hidden under the loads: the early histogram, the bound, keys that reach it. Not hidden: 2 meetings
//                  of the grid of about 1.3 us, and about as much again for what L2 is asked between them
// Keys are M, heads are N. A quad's four lanes serve 1, 2 or 4 rows side by side: columns are permuted so that a row's
// eight served chains lie over 4, 2 lanes or in one, and 2, 1 or no shuffles add them up in the served order.
#include "cuda/few.cuh"
#include "cuda/few_select.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma_narrow.cuh"
#include "cuda/stream.cuh"

namespace dosa::cuda {
namespace {

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

/// Where a key's codes and scale lie; nothing for keys no row may see and for pages that do not exist. Those are noted
/// in the block's own status: the call's is cleared while the launch runs.
__device__ KeyAddress few_key(FewControl& s, const KeySource& keys, const Part& part, std::int32_t key) {
  if (key < part.first || key >= part.last) return {nullptr, nullptr};
  const KeyAddress address = keys.locate(key);
  if (address.codes == nullptr) atomicOr(&s.status, static_cast<std::uint32_t>(kStatusPage));
  return address;
}

/// Page coordinate of a box: a page past the cache (zeros arrive) where nothing visible lies or the page is not there.
__device__ std::int32_t few_page(const Params& p, FewControl& s, const Part& part, std::int32_t key, std::int32_t box) {
  if (!p.is_paged) return 0;
  const auto nowhere = static_cast<std::int32_t>(p.paged.pages);
  if (key + box <= part.first || key >= part.last) return nowhere;
  const auto& table = p.paged.block_table;
  const std::int32_t page = table.data[part.request * table.strides[0] + (key >> p.page_shift) * table.strides[1]];
  if (page >= 0 && page < nowhere) return page;
  atomicOr(&s.status, static_cast<std::uint32_t>(kStatusPage));
  return nowhere;
}

/// The warp that loads: a tile a stage. Scales go where the keys' scores of row 0 will be: contiguous ones by pieces of
/// 1,024 keys (256 bytes are too little for a DRAM page), others with their tile.
template <int kPanels>
struct FewLoader {
  const Params& p;
  const FewParams& f;
  const CUtensorMap& map;
  FewControl& s;
  std::uint8_t* codes;
  float* scales;
  const FewWalk& walk;
  int lane;

  __device__ bool pieces() const { return p.loader == Loader::tma && p.scales_together; }

  __device__ void load_scales(int piece) const {
    const std::int32_t at = piece * kFewScaleTiles * kFewTile, first = walk.first_key + at;
    const std::int32_t size = min(min(kFewScaleTiles * kFewTile, walk.tiles * kFewTile - at), p.keys - first);
    const std::int32_t whole = size & ~3;  // a copy has a multiple of 16 bytes; what is left are the last keys of all
    const float* const from = p.contiguous.scales.data + first;
    if (lane < size - whole) scales[at + whole + lane] = from[whole + lane];
    __syncwarp();
    if (lane == 0) {
      const auto bytes = static_cast<std::uint32_t>(4 * whole);
      if (bytes != 0) ptx::bulk_load(scales + at, from, bytes, &s.scales[piece]);
      ptx::mbarrier_arrive_expect(&s.scales[piece], bytes);
    }
  }

  __device__ void fill_tma(int tile, int stage) const {
    const std::int32_t box = f.box_rows, first = walk.first_key + tile * kFewTile;
    std::uint8_t* const to = codes + stage * f.sizes.tile_bytes();
    float* const scales_to = scales + tile * kFewTile;
    std::uint64_t* const full = &s.full[stage];
    std::uint32_t bytes = 0;
    bool loose = false;
    const std::int32_t key = first + lane * box;
    if (lane * box < kFewTile) {
      const std::int32_t page = few_page(p, s, walk.part, key, box);
      const std::int32_t row = p.is_paged ? key & (p.paged.page_size - 1) : key;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        ptx::tma_load(to + panel * kFewTile * 128 + lane * box * 128, &map, full, panel * 128, row, page);
      bytes = static_cast<std::uint32_t>(kPanels * 128 * box);
      if (!pieces()) {
        if (const float* const from = p.is_paged ? box_scales(p, key, box, page) : nullptr; from != nullptr) {
          ptx::bulk_load(scales_to + lane * box, from, static_cast<std::uint32_t>(4 * box), full);
          bytes += static_cast<std::uint32_t>(4 * box);
        } else {
          loose = true;
        }
      }
    }
    for (std::uint32_t waiting = __ballot_sync(kAllLanes, loose); waiting != 0; waiting &= waiting - 1) {
      const std::int32_t at = (__ffs(static_cast<int>(waiting)) - 1) * box;
      const KeySource keys = keys_of_request(p, walk.part.request);
      for (int j = lane; j < box; j += 32) {
        const KeyAddress address = few_key(s, keys, walk.part, first + at + j);
        scales_to[at + j] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
      }
    }
    // Bytes may arrive before they are expected: the phase is open until the one arrival.
    bytes = __reduce_add_sync(kAllLanes, bytes);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive_expect(full, bytes);
  }

  /// The same bytes by ordinary copies of the warp.
  __device__ void fill_plain(int tile, int stage) const {
    const std::int32_t first = walk.first_key + tile * kFewTile;
    std::uint8_t* const codes_to = codes + stage * f.sizes.tile_bytes();
    const KeySource keys = keys_of_request(p, walk.part.request);
    for (int i = lane; i < kFewTile; i += 32) {
      const KeyAddress address = few_key(s, keys, walk.part, first + i);
      scales[tile * kFewTile + i] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
    }
    constexpr int kPieces = kPanels * 8;
    for (int i = lane; i < kFewTile * kPieces; i += 32) {
      const int vector = i / kPieces, piece = i % kPieces;
      std::uint8_t* const to = codes_to + swizzled(vector, piece, kFewTile);
      const KeyAddress address =
          piece * 16 < p.head_dim ? few_key(s, keys, walk.part, first + vector) : KeyAddress{nullptr, nullptr};
      if (address.codes == nullptr) {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      } else if (p.code_alignment == 16) {
        ptx::copy_async<16>(to, address.codes + piece * 16);
      } else if (p.code_alignment == 4) {
#pragma unroll
        for (int word = 0; word < 4; ++word) ptx::copy_async<4>(to + 4 * word, address.codes + piece * 16 + 4 * word);
      } else {
#pragma unroll
        for (int byte = 0; byte < 16; ++byte) to[byte] = address.codes[piece * 16 + byte];
      }
    }
    ptx::copy_wait_all();
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&s.full[stage]);
  }

  __device__ void run() const {
    Ring ring;
    ring.phase = 1;  // every stage starts empty
    int piece = -1;
    for (int i = 0; i < walk.tiles; ++i) {
      const int tile = f.backwards ? walk.tiles - 1 - i : i;
      if (pieces() && tile / kFewScaleTiles != piece) load_scales(piece = tile / kFewScaleTiles);
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.phase);
      if (p.loader == Loader::tma) {
        fill_tma(tile, ring.stage);
      } else {
        fill_plain(tile, ring.stage);
      }
      if (++ring.stage == f.sizes.stages) ring.stage = 0, ring.phase ^= 1;
    }
  }
};

/// Whose column 8i + 2t + e of a block of 32 heads is, kSlots rows side by side: lane t of a quad holds it, and 2 *
/// kSlots of the eight chains of its row. Padding heads have code 0 and weight -0.
template <int kSlots>
struct FewColumn {
  int slot, head;
  __device__ explicit FewColumn(int column) {
    constexpr int kShare = 4 / kSlots;
    const int i = column / 8, t = column % 8 / 2, e = column % 2;
    slot = t / kShare;
    head = i / kSlots * 8 + 2 * (t % kShare * kSlots + i % kSlots) + e;
  }
};

template <int kHeadBlocks, int kSlots, int kPanels>
__device__ void load_few_queries(const Params& p, const FewParams& f, std::uint8_t* q, float* weights) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kPieces = kPanels * 8, kBlock = 32 * kSlots, kColumns = kBlock * kHeadBlocks;
  for (int i = thread; i < kColumns * kPieces; i += kFewConsumers) {
    const int piece = i % kPieces, column = i / kPieces;
    const FewColumn<kSlots> of(column % kBlock);
    const int head = column / kBlock * 32 + of.head, t = f.first_row + of.slot;
    uint4 codes = make_uint4(0, 0, 0, 0);
    if (of.slot < f.sizes.rows && t < p.rows && head < p.heads && piece * 16 < p.head_dim) {
      const std::uint8_t* const from = p.q + t * p.q_row + head * p.q_head + piece * 16;
      if (p.q_aligned) {
        codes = *reinterpret_cast<const uint4*>(from);
      } else {
        std::uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          word[j] = from[4 * j] | static_cast<std::uint32_t>(from[4 * j + 1]) << 8 |
                    static_cast<std::uint32_t>(from[4 * j + 2]) << 16 |
                    static_cast<std::uint32_t>(from[4 * j + 3]) << 24;
        codes = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
    *reinterpret_cast<uint4*>(q + swizzled(column, piece, kColumns)) = codes;
  }
  // Of each block of heads, the weights of one lane of a quad together, in the order of its accumulators.
  for (int column = thread; column < kColumns; column += kFewConsumers) {
    const FewColumn<kSlots> of(column % kBlock);
    const int block = column / kBlock, i = column % kBlock / 8, t = column % 8 / 2, e = column % 2;
    weights[(4 * block + t) * f.sizes.weight_lane() + 2 * i + e] =
        of.slot < f.sizes.rows ? weight_of(p, f.first_row + of.slot, block * 32 + of.head) : -0.0F;
  }
}

/// Adds 8 * kSlots heads of a lane to its chains of two keys. The first block starts with head group 1: the served
/// order.
template <bool kFirst, int kSlots>
__device__ void lane_chain(const float* d, const float (&w)[8 * kSlots], float (&sum)[2][2 * kSlots]) {
#pragma unroll
  for (int c = 0; c < 2 * kSlots; ++c)
#pragma unroll
    for (int key = 0; key < 2; ++key) {
      const auto r = [&](int group) { return relu(d[4 * (group * kSlots + c / 2) + 2 * key + c % 2]); };
      const auto weight = [&](int group) { return w[2 * (group * kSlots + c / 2) + c % 2]; };
      float& x = sum[key][c];
      if constexpr (kFirst) {
        x = __fmul_rn(weight(1), r(1));
        x = __fmaf_rn(weight(0), r(0), x);
      } else {
        x = __fmaf_rn(weight(0), r(0), x);
        x = __fmaf_rn(weight(1), r(1), x);
      }
      x = __fmaf_rn(weight(2), r(2), x);
      x = __fmaf_rn(weight(3), r(3), x);
    }
}

/// The served scores of a lane's two keys: both in the lane (4 slots); one of them, the second in odd lanes (2 slots);
/// the same, and lanes 2 and 3 have what 0 and 1 have (1 slot). Adds commute, so which lane adds changes no bit.
template <int kSlots>
__device__ void served_scores(const float (&sum)[2][2 * kSlots], const float (&scale)[2], bool odd, float (&score)[2]) {
  float own[2];
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    float part[kSlots];
#pragma unroll
    for (int j = 0; j < kSlots; ++j) part[j] = __fmul_rn(__fadd_rn(sum[key][2 * j], sum[key][2 * j + 1]), scale[key]);
    if constexpr (kSlots == 1) own[key] = part[0];
    if constexpr (kSlots >= 2) own[key] = __fadd_rn(part[0], part[1]);
    if constexpr (kSlots == 4) own[key] = __fadd_rn(own[key], __fadd_rn(part[2], part[3]));
  }
  if constexpr (kSlots == 4) {
    score[0] = own[0], score[1] = own[1];
  } else {
    score[0] = __fadd_rn(odd ? own[1] : own[0], __shfl_xor_sync(kAllLanes, odd ? own[0] : own[1], 1));
    if constexpr (kSlots == 1) score[0] = __fadd_rn(score[0], __shfl_xor_sync(kAllLanes, score[0], 2));
  }
}

template <int kHeadBlocks, int kSlots, int kPanels>
__device__ void score_tiles(const Params& p, const FewParams& f, FewControl& s, std::uint8_t* memory) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(kAllLanes, thread / 32, 0);  // uniform, so that descriptors lie in uniform registers
  const int group = warp / 4, g = lane / 4, t = lane % 4;
  const FewSizes& sizes = f.sizes;
  const FewMemory where(memory, sizes);
  const float* const weights = reinterpret_cast<const float*>(memory + sizes.weights_at()) + t * sizes.weight_lane();
  const float* const scales = reinterpret_cast<const float*>(where.scores);
  const int local = warp % 4 * 16 + g, tiles = s.walk.tiles;
  const bool pieces = p.loader == Loader::tma && p.scales_together;
  // What this lane keeps of a tile.
  constexpr int kShare = 4 / kSlots;
  const bool mine = t / kShare < sizes.rows && (kSlots > 1 || t < 2);
  const int my_local = local + (kSlots == 4 ? 0 : t % 2 * 8);
  FewNotes notes(sizes, s, where, mine ? t / kShare : 0, tiles);
  const auto codes = ptx::shared_address(memory) + static_cast<std::uint32_t>(sizes.codes_at());
  const ptx::Descriptor b_of(ptx::shared_address(memory));
  // MMAs in flight together: 64 accumulators at most.
  constexpr int kTogether = kHeadBlocks * kSlots <= 4 ? kHeadBlocks : 4 / kSlots;
  constexpr int kColumns = 32 * kSlots * kHeadBlocks;
  constexpr bool kKeepWeights = kHeadBlocks * kSlots <= 2;  // else read again for each tile: registers are full
  float kept[kKeepWeights ? kHeadBlocks : 1][8 * kSlots];
  const auto load_weights = [&](int block, float(&w)[8 * kSlots]) {
#pragma unroll
    for (int j = 0; j < 2 * kSlots; ++j) {
      const float4 four = *reinterpret_cast<const float4*>(weights + block * 4 * sizes.weight_lane() + 4 * j);
      w[4 * j] = four.x, w[4 * j + 1] = four.y, w[4 * j + 2] = four.z, w[4 * j + 3] = four.w;
    }
  };
  if constexpr (kKeepWeights) {
#pragma unroll
    for (int block = 0; block < kHeadBlocks; ++block) load_weights(block, kept[block]);
  }
  Ring ring;
  ring.stage = group;
  int piece = -1;
  for (int i = group; i < tiles; i += kFewGroups) {
    const int tile = f.backwards ? tiles - 1 - i : i;
    notes.begin(i);
    if (pieces && tile / kFewScaleTiles != piece) ptx::mbarrier_wait(&s.scales[piece = tile / kFewScaleTiles], 0);
    ptx::mbarrier_wait(&s.full[ring.stage], ring.phase);
    __syncwarp();
    // Read before the scores of the same keys take their place: the MMA below keeps the warp together.
    const float scale[2] = {scales[tile * kFewTile + local], scales[tile * kFewTile + local + 8]};
    const ptx::Descriptor a_of(codes + static_cast<std::uint32_t>(ring.stage * sizes.tile_bytes()));
    float sum[2][2 * kSlots];
#pragma unroll
    for (int first = 0; first < kHeadBlocks; first += kTogether) {
      float d[kTogether][16 * kSlots];
      ptx::wgmma_fence();
#pragma unroll
      for (int block = 0; block < kTogether; ++block)
#pragma unroll
        for (int k = 0; k < 4 * kPanels; ++k) {
          const std::uint32_t a = static_cast<std::uint32_t>(k / 4 * kFewTile * 128 + k % 4 * 32);
          const std::uint32_t b =
              static_cast<std::uint32_t>((first + block) * 32 * kSlots * 128 + k / 4 * kColumns * 128 + k % 4 * 32);
          if (k == 0) {
            ptx::wgmma_k32<false>(d[block], a_of.at(a), b_of.at(b));
          } else {
            ptx::wgmma_k32<true>(d[block], a_of.at(a), b_of.at(b));
          }
        }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int block = 0; block < kTogether; ++block) ptx::pin(d[block]);
      if (first + kTogether >= kHeadBlocks) {  // codes are read: the stage may be filled again
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(&s.empty[ring.stage]);
      }
#pragma unroll
      for (int block = 0; block < kTogether; ++block) {
        float loaded[8 * kSlots];
        if constexpr (!kKeepWeights) load_weights(first + block, loaded);
        const float(&w)[8 * kSlots] = kKeepWeights ? kept[kKeepWeights ? first + block : 0] : loaded;
        if (first + block == 0) {
          lane_chain<true, kSlots>(d[block], w, sum);
        } else {
          lane_chain<false, kSlots>(d[block], w, sum);
        }
      }
    }
    float score[2];
    served_scores<kSlots>(sum, scale, t % 2 != 0, score);
    if (mine) {
      notes.put(i, tile * kFewTile + my_local, score[0]);
      if constexpr (kSlots == 4) notes.put(i, tile * kFewTile + my_local + 8, score[1]);
    }
    ring.stage += kFewGroups;
    if (ring.stage >= sizes.stages) ring.stage -= sizes.stages, ring.phase ^= 1;
  }
  notes.end();
  for (int i = group; i < min(tiles, notes.checked); i += kFewGroups) {
    const int at = (f.backwards ? tiles - 1 - i : i) * kFewTile + my_local;
    if (mine) {
      notes.again(at);
      if constexpr (kSlots == 4) notes.again(at + 8);
    }
  }
}

constexpr int kReady = 7;  // named barrier: the ring's barriers are there, and what warp 0 says of the rows
constexpr int kReadyThreads = kFewConsumers + 64;

/// The last warpgroup.
template <int kPanels>
__device__ void help(const Params& p, const FewParams& f, const CUtensorMap& map, FewControl& s, std::uint8_t* memory) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const FewMemory where(memory, f.sizes);
  if (warp == kFewWarps) {
    // Waits for nobody: the first keys are on their way while queries arrive.
    if (lane == 0) {
      if (p.loader == Loader::tma) ptx::tma_prefetch_map(&map);
      for (int i = 0; i < f.sizes.stages; ++i) {
        ptx::mbarrier_init(&s.full[i], 1);
        ptx::mbarrier_init(&s.empty[i], 4);
      }
      for (int i = 0; i <= (f.sizes.tiles - 1) / kFewScaleTiles; ++i) ptx::mbarrier_init(&s.scales[i], 1);
      ptx::mbarrier_init(&s.early, kFewWarps);
      ptx::mbarrier_init(&s.bound, 1);
      ptx::fence_barrier_init();
      s.status = 0;
    }
    __syncwarp();
    ptx::named_barrier_arrive<kReady, kReadyThreads>();
    DeviceRow row;
    const FewWalk walk = few_walk(p, f, row);
    FewLoader<kPanels>{p, f, map, s, memory + f.sizes.codes_at(), reinterpret_cast<float*>(where.scores), walk, lane}
        .run();
  } else if (warp == kFewWarps + 1) {
    const std::uint32_t cleared = FewBound::clear(p, f);
    ptx::named_barrier<kReady, kReadyThreads>();
    bool any = false;
    for (int r = 0; r < f.sizes.rows; ++r) any |= s.rows[r].competes();
    if (any) FewBound{p, f, s, where}.find(cleared);
  }
}

template <int kHeadBlocks, int kSlots, int kPanels>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_rows_kernel(const __grid_constant__ Params p, const __grid_constant__ FewParams f,
                    const __grid_constant__ CUtensorMap map) {
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* const memory = unaligned + (1024U - ptx::shared_address(unaligned) % 1024U) % 1024U;
  auto& s = *reinterpret_cast<FewControl*>(memory + f.sizes.control_at());
  if (threadIdx.x >= kFewConsumers) {
    ptx::registers_down<kFewHelperRegisters>();
    help<kPanels>(p, f, map, s, memory);
  } else {
    ptx::registers_up<kFewConsumerRegisters>();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 32) {
      DeviceRow row;
      const FewWalk walk = few_walk(p, f, row);
      if (thread == 0) s.walk = walk, s.known = 0;
      if (thread < f.sizes.rows) {
        const std::int32_t keys = walk.tiles * kFewTile;
        const auto inside = [&](std::int32_t key) {
          return row.competes() ? static_cast<std::uint32_t>(min(max(key - walk.first_key, 0), keys)) : 0U;
        };
        s.rows[thread] = row;
        s.first[thread] = inside(row.first), s.last[thread] = inside(row.last);
        s.search[thread] = {1, 0xffffffffU, static_cast<std::uint32_t>(max(row.free_slots, 0)), 0, 0, 0, false};
      }
    }
    // Bits and bins lie side by side.
    for (int i = f.sizes.bits_at() / 16 + thread; i < f.sizes.weights_at() / 16; i += kFewConsumers)
      reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
    load_few_queries<kHeadBlocks, kSlots, kPanels>(p, f, memory,
                                                   reinterpret_cast<float*>(memory + f.sizes.weights_at()));
    ptx::fence_async_proxy();
    ptx::named_barrier<kReady, kReadyThreads>();
    score_tiles<kHeadBlocks, kSlots, kPanels>(p, f, s, memory);
    FewSelection(p, f, s, FewMemory(memory, f.sizes), memory)
        .run(p.loader == Loader::tma ? &p.counters->stages_tma : &p.counters->stages_plain);
  }
}

template <int kHeadBlocks, int kPanels>
const void* few_kernel_of(int slots) {
  return slots == 1   ? reinterpret_cast<const void*>(&few_rows_kernel<kHeadBlocks, 1, kPanels>)
         : slots == 2 ? reinterpret_cast<const void*>(&few_rows_kernel<kHeadBlocks, 2, kPanels>)
                      : reinterpret_cast<const void*>(&few_rows_kernel<kHeadBlocks, 4, kPanels>);
}
template <int kPanels>
const void* few_kernel_of(int head_blocks, int slots) {
  return head_blocks == 1   ? few_kernel_of<1, kPanels>(slots)
         : head_blocks == 2 ? few_kernel_of<2, kPanels>(slots)
                            : few_kernel_of<4, kPanels>(slots);
}

}  // namespace

const void* few_kernel(int head_blocks, int slots, int panels) {
  return panels == 1 ? few_kernel_of<1>(head_blocks, slots) : few_kernel_of<2>(head_blocks, slots);
}

}  // namespace dosa::cuda
