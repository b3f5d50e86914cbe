// Scores of given (row, key) pairs, bit for bit the served ones, and the exact selection from them. Pairs come as bit
// masks over keys. A block (one warpgroup) takes a row or a piece of its keys: it expands the mask into lists of 64
// keys, gathers their codes, multiplies them with the row's heads and keeps what reaches the row's threshold in a
// bounded buffer that is cut back exactly when it is full.
//
// Account for a tile of 64 pairs, D = 128, per warp (a fourth of the tile), H = 32 / 64 / 128:
//   mask             1 bit a key: 128 bits a thread and step of 16,384 keys. At 1 % survivors a step makes 2.6 tiles
//   gather           64 * 132 bytes, from L2 or L1: 4 copies of 16 bytes a thread, 8 lanes to a key's 128-byte line
//   tensor cores     64 * 32 * 128 / 4096 = 64 / 128 / 256 cycles; shared memory 3 KiB a k-step: 96 / 192 / 384 cycles
//   served epilogue  16 FMNMX and 16 FMUL or FFMA a head block, 2 (FADD + FMUL) and 4 (SHFL + FADD): 44 / 76 / 140
//   keep             a vote, a barrier, at most one 8-byte store a thread
// A tile is a chain of latencies (list, address, copy, MMA, epilogue) and no unit is busy for long: blocks, not stages,
// hide them. So: two stages, and as many blocks an SM as registers and shared memory admit.
//
// Heads stand in natural order: in the accumulator of m64n32k32, thread t of a quad holds columns 8i + 2t + e, which
// are the served kernel's chains (t, e). Its parts meet in two shuffles, in the served order.
#include <cub/block/block_scan.cuh>

#include "cuda/heads.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/refine.cuh"
#include "cuda/select.cuh"

namespace dosa::cuda {
namespace {

constexpr int kThreads = 128;  // wgmma is issued by a warpgroup: 4 warps
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;    // rows of wgmma: pairs scored at once
constexpr int kStages = 2;   // one is gathered while the other is scored
constexpr int kLane = 128;   // keys whose bits a thread holds: one 16-byte load
constexpr int kRound = 512;  // pairs listed at once
constexpr std::uint32_t kSpan =
    256;  // words of bits a warp for index order: 2 * 4 * 256 * kWarps = 8 KiB in the stages
static_assert(kLane * kThreads == kRefineStepKeys);

/// kHeadBlocks * 32 heads and kSteps MMA k-steps of 32 dimensions, both padded: heads by code 0 and weight -0,
/// dimensions by code 0, none of which changes a bit.
template <int kHeadBlocks_, int kSteps_>
struct Shapes {
  static constexpr int kHeadBlocks = kHeadBlocks_, kSteps = kSteps_;
  static constexpr int kPanels = (kSteps + 3) / 4;  // 128 bytes of a key: one swizzle row
  static constexpr int kPanelBytes = kTile * 128, kQueryPanelBytes = 32 * 128;
  static constexpr int kQueryBlockBytes = kPanels * kQueryPanelBytes;
  static constexpr int kLanes = kSteps >= 4 ? 8 : 2 * kSteps;  // lanes to a key, 16 bytes each
  static constexpr int kPass = kThreads / kLanes;              // keys gathered by one copy a thread
  // 65,536 registers: 64, 102 and 128 or more a thread. Shared memory (D = 128): 28, 32, 44 KiB a block of 227.
  static constexpr int kResident = kHeadBlocks == 1 ? 8 : kHeadBlocks == 2 ? 5 : 3;
  static_assert(kTile % kPass == 0 && kPass % 8 == 0, "a thread's keys share a place in the swizzle");
  static_assert(kPanelBytes % 1024 == 0 && kQueryPanelBytes % 1024 == 0, "the swizzle repeats every 1024 bytes");
};

using Scan = cub::BlockScan<std::uint32_t, kThreads>;

template <class C>
struct Shared {
  alignas(1024) std::uint8_t q[C::kHeadBlocks * C::kQueryBlockBytes];
  alignas(1024) std::uint8_t codes[kStages][C::kPanels * C::kPanelBytes];
  alignas(16) float scales[kStages][kTile];
  alignas(16) float weights[4][8 * C::kHeadBlocks];  ///< of a quad's lanes, two heads of each group of 8
  std::int32_t keys[kStages][kTile];                 ///< -1: none
  std::int32_t list[kTile - 1 + kRound];             ///< pairs waiting for a tile, by ascending key
  alignas(16) std::uint32_t team[Team<kWarps>::kWords];
  typename Scan::TempStorage scan;
  std::uint32_t hits[kStages][kWarps];
  DeviceRow row;
  std::uint32_t count;  ///< entries in the buffer, where a team reads them
  float threshold;
  std::uint32_t closed;  ///< K entries of +inf: nothing that comes later enters
  std::uint32_t unit, sorted_in_spare;
};
static_assert(2 * kSpan * 4 * kWarps <= kStages * kTile * 128, "bits for index order lie in the stages");

/// The pairs of one unit in ascending order of keys, as lists in shared memory. Every member but the rank is the same
/// in all threads. Bits are read again where a step has more pairs than the list: they would cost the tiles registers.
template <class C>
struct Pairs {
  std::uint32_t rank = 0;               ///< of this thread's first bit among the step's
  std::uint32_t total = 0, listed = 0;  ///< bits of the step, and those in the list already
  std::int32_t begin = 0, end = 0;      ///< waiting in the list
  std::int32_t step, steps;             ///< next step, end of the unit's
  std::int32_t origin;                  ///< key of step 0

  [[nodiscard]] __device__ std::uint32_t first_key(std::int32_t at) const {
    return static_cast<std::uint32_t>(origin) + static_cast<std::uint32_t>(at) * kRefineStepKeys + kLane * threadIdx.x;
  }
  /// This thread's bits of a step, cut to the row's window.
  __device__ void load(const RefineParams& r, const DeviceRow& row, std::int32_t t, std::int32_t at,
                       std::uint32_t (&into)[4]) const {
    const std::uint32_t key = first_key(at);
    uint4 four = make_uint4(0, 0, 0, 0);
    // A row's words are whole 16-byte pieces.
    if (key < static_cast<std::uint32_t>(row.last))
      four = *reinterpret_cast<const uint4*>(r.mask + t * r.mask_row + key / 32);
    into[0] = four.x, into[1] = four.y, into[2] = four.z, into[3] = four.w;
#pragma unroll
    for (std::uint32_t w = 0; w < 4; ++w) {
      const std::int64_t below = std::int64_t{row.first} - (key + 32 * w),
                         above = std::int64_t{row.last} - (key + 32 * w);
      if (below > 0) into[w] = below >= 32 ? 0 : into[w] & (kAllLanes << below);
      if (above < 32) into[w] = above <= 0 ? 0 : into[w] & ~(kAllLanes << above);
    }
  }
  /// Moves the next step's bits from memory to L2 while this one's pairs are scored.
  __device__ void fetch_ahead(const RefineParams& r, const DeviceRow& row, std::int32_t t) const {
    const std::uint32_t key = first_key(step);
    if (step < steps && key < static_cast<std::uint32_t>(row.last))
      ptx::prefetch_l2(r.mask + t * r.mask_row + key / 32);
  }

  __device__ void start(const RefineParams& r, const DeviceRow& row, std::int32_t chunk) {
    origin = row.first / kLane * kLane;
    const std::int64_t all = (std::int64_t{row.last} - origin + kRefineStepKeys - 1) / kRefineStepKeys;
    step = static_cast<std::int32_t>(all * chunk / r.call.chunks);
    steps = static_cast<std::int32_t>(all * (chunk + 1) / r.call.chunks);
  }

  /// Tops the list up to a tile where there are pairs left. The whole block calls it.
  __device__ void refill(const RefineParams& r, std::int32_t t, Shared<C>& s) {
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t waiting = end - begin;  // less than a tile: a thread each
    const std::int32_t moved = thread < waiting ? s.list[begin + thread] : 0;
    __syncthreads();
    if (thread < waiting) s.list[thread] = moved;
    begin = 0, end = waiting;
    while (end < kTile && (listed < total || step < steps)) {
      std::uint32_t words[4];
      if (listed == total) {
        load(r, s.row, t, step++, words);
        fetch_ahead(r, s.row, t);
        std::uint32_t own = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) own += static_cast<std::uint32_t>(__popc(words[w]));
        __syncthreads();  // the scan before is over
        Scan(s.scan).ExclusiveSum(own, rank, total);
        listed = 0;
      } else {
        load(r, s.row, t, step - 1, words);
      }
      const std::uint32_t upto = min(total, listed + static_cast<std::uint32_t>(kTile - 1 + kRound - end));
      const std::uint32_t key = first_key(step - 1);
      std::int32_t* const to = s.list + end - static_cast<std::int32_t>(listed);
      std::uint32_t at = rank;
#pragma unroll
      for (std::uint32_t w = 0; w < 4; ++w) {
        for (std::uint32_t left = words[w]; left != 0; left &= left - 1, ++at)
          if (at >= listed && at < upto)
            to[at] = static_cast<std::int32_t>(key + 32 * w) + __ffs(static_cast<int>(left)) - 1;
      }
      end += static_cast<std::int32_t>(upto - listed);
      listed = upto;
    }
    __syncthreads();
  }
};

/// Starts the copies of `count` listed keys into a stage. What has no codes keeps the stage's last ones: its scale is
/// NaN.
template <class C>
__device__ void copy_keys(const RefineParams& r, const KeySource& keys, Shared<C>& s, const std::int32_t* list,
                          std::int32_t count, int stage) {
  const Params& p = r.call;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const int lane = thread % C::kLanes, line = thread / C::kLanes;
  // The lanes of a line find their keys' addresses together: each finds one and tells the others.
  constexpr int kPasses = kTile / C::kPass;
  static_assert(kPasses <= C::kLanes);
  const std::int32_t mine = lane % kPasses * C::kPass + line;
  const std::int32_t key = mine < count ? list[mine] : -1;
  const KeyAddress address = key >= 0 ? keys.locate(key) : KeyAddress{nullptr, nullptr};
  if (lane < kPasses) {
    s.keys[stage][mine] = key;
    if (address.scale != nullptr) {
      ptx::copy_async<4>(&s.scales[stage][mine], address.scale);
    } else {
      s.scales[stage][mine] = __int_as_float(0x7fffffff);  // cannot be selected
      if (key >= 0) atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status), kStatusPage);
    }
  }
  std::uint8_t* const to = s.codes[stage] + line * 128 + ((lane ^ (line & 7)) << 4);
  const auto codes_of = [&](int pass) {
    return reinterpret_cast<const std::uint8_t*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(address.codes), pass, C::kLanes));
  };
  if (p.code_alignment == 16) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::uint8_t* const codes = codes_of(pass);
      if (codes == nullptr) continue;
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        const int at = 128 * panel + 16 * lane;
        std::uint8_t* const piece = to + panel * C::kPanelBytes + pass * C::kPass * 128;
        if (at < p.head_dim) {
          ptx::copy_async<16>(piece, codes + at);
        } else {
          *reinterpret_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
        }
      }
    }
    return;
  }
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::uint8_t* const codes = codes_of(pass);
    if (codes == nullptr) continue;
#pragma unroll 1
    for (int byte = 0; byte < 16 * C::kPanels; byte += 4) {
      const int panel = byte / 16, at = 128 * panel + 16 * lane + byte % 16;
      std::uint8_t* const word = to + panel * C::kPanelBytes + pass * C::kPass * 128 + byte % 16;
      if (at >= p.head_dim) {
        *reinterpret_cast<std::uint32_t*>(word) = 0;
      } else if (p.code_alignment == 4) {
        ptx::copy_async<4>(word, codes + at);
      } else {
#pragma unroll
        for (int b = 0; b < 4; ++b) word[b] = codes[at + b];
      }
    }
  }
}

/// Starts the copies of the next tile into a stage; how many pairs it has.
template <class C>
__device__ std::int32_t gather(const RefineParams& r, std::int32_t t, Shared<C>& s, Pairs<C>& pairs, int stage) {
  if (pairs.end - pairs.begin < kTile) pairs.refill(r, t, s);
  const std::int32_t count = min(pairs.end - pairs.begin, kTile);
  if (count == 0) return 0;
  const std::int32_t* const list = s.list + pairs.begin;
  if (r.call.is_paged) {
    copy_keys<C>(r, KeySource(r.call.paged, s.row.request), s, list, count, stage);
  } else {
    copy_keys<C>(r, KeySource(r.call.contiguous), s, list, count, stage);
  }
  pairs.begin += count;
  return count;
}

template <class C>
__device__ void load_heads(const Params& p, std::int32_t t, Shared<C>& s) {
  constexpr int kPieces = 8 * C::kPanels;  // of 16 bytes, a head
  for (int i = static_cast<int>(threadIdx.x); i < 32 * C::kHeadBlocks * kPieces; i += kThreads) {
    const int piece = i % kPieces, head = i / kPieces;
    std::uint8_t* const to = s.q + head / 32 * C::kQueryBlockBytes + piece / 8 * C::kQueryPanelBytes + head % 32 * 128 +
                             (((piece % 8) ^ (head & 7)) << 4);
    *reinterpret_cast<uint4*>(to) = query_piece(p, t, head, piece);
  }
  if (const int head = static_cast<int>(threadIdx.x); head < 32 * C::kHeadBlocks)
    s.weights[head % 8 / 2][head / 8 * 2 + head % 2] = weight_of(p, t, head);
}

/// This quad lane's two chains over all heads, their sum and the scale: part[t] of the served score, for the
/// accumulator's rows g and g + 8. `weights`: of the lane's heads, 16-byte pieces of shared memory (they would take
/// registers from the blocks that hide latencies).
template <int kHeadBlocks>
__device__ void parts_of(const float (&d)[kHeadBlocks][16], const float* weights, const float (&scale)[2],
                         float (&part)[2]) {
  float chain[2][2];
#pragma unroll
  for (int b = 0; b < kHeadBlocks; ++b) {
    const float4 low = reinterpret_cast<const float4*>(weights)[2 * b];
    const float4 high = reinterpret_cast<const float4*>(weights)[2 * b + 1];
    const float w[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
#pragma unroll
    for (int key = 0; key < 2; ++key)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto r = [&](int group) { return relu(d[b][4 * group + 2 * key + e]); };
        float& x = chain[key][e];
        if (b == 0) {
          x = __fmul_rn(w[1][e], r(1));  // head group 1 comes first
          x = __fmaf_rn(w[0][e], r(0), x);
        } else {
          x = __fmaf_rn(w[0][e], r(0), x);
          x = __fmaf_rn(w[1][e], r(1), x);
        }
        x = __fmaf_rn(w[2][e], r(2), x);
        x = __fmaf_rn(w[3][e], r(3), x);
      }
  }
#pragma unroll
  for (int key = 0; key < 2; ++key) part[key] = __fmul_rn(__fadd_rn(chain[key][0], chain[key][1]), scale[key]);
}

/// (part 0 + part 1) + (part 2 + part 3), the same in all four lanes of a quad.
__device__ inline float sum_of_quad(float part) {
  part = __fadd_rn(part, __shfl_xor_sync(kAllLanes, part, 1));
  return __fadd_rn(part, __shfl_xor_sync(kAllLanes, part, 2));
}

/// Cuts a row's buffer back to the best `wanted` of `have` entries; they stay in their order. The whole block calls it.
template <class C>
__device__ void cut_back(Shared<C>& s, Entry* entries, std::uint32_t have, std::uint32_t wanted) {
  const Team<kWarps> team(static_cast<int>(threadIdx.x) / 32, s.team);
  if (threadIdx.x == 0) s.count = have;
  __syncthreads();  // with this, the entries are everybody's, too
  const std::uint64_t limit = team.bound({entries, 0, &s.count, 1, kWarps}, wanted);
  __syncthreads();
  if (team.warp == 0) {
    const float kth = score_of(compact(Team<1>(0, s.team), entries, have, limit));
    if (team.lane == 0) {
      // Later keys have larger indices: an equal score can no longer enter.
      const bool closed = kth == __int_as_float(0x7f800000);
      s.threshold = closed ? kth : next_above(kth);
      s.closed = closed ? 1 : 0;
    }
  }
  __syncthreads();
}

/// Scores the unit's pairs. Its candidates end up in `entries` by ascending key, s.count of them: no more than the row
/// has slots where it is not split.
template <class C>
__device__ void walk(const RefineParams& r, Shared<C>& s, std::int32_t t, std::int32_t chunk, Entry* entries) {
  const Params& p = r.call;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / 32), 0);
  const int t4 = lane % 4;
  load_heads<C>(p, t, s);
  Pairs<C> pairs;
  pairs.start(r, s.row, chunk);

  // A tile's candidates are filed in the next round: then every warp knows how many the warps before it have.
  float score = 0;
  std::int32_t key = -1;
  std::uint32_t place = 0, have = 0, tiles = 0;
  bool hit = false;
  int stage = 0;
  std::int32_t count = 0;  // pairs of the tile in `stage`
  for (bool first = true;; first = false) {
    ptx::copy_wait_all();
    ptx::fence_async_proxy();
    // From here on this stage's codes and the tile before's votes are everybody's, and the other stage is free.
    __syncthreads();
    if (p.matrix == nullptr) {
      if (tiles > 0) {
        std::uint32_t before = have;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const std::uint32_t theirs = s.hits[stage ^ 1][w];
          if (w < warp) before += theirs;
          have += theirs;
        }
        if (hit) entries[before + place] = {score, key};
      }
      const auto wanted = static_cast<std::uint32_t>(s.row.free_slots);
      const bool over = count == 0 && !first;
      if (over ? p.chunks == 1 && have > wanted : have + kTile > static_cast<std::uint32_t>(p.capacity)) {
        cut_back<C>(s, entries, have, wanted);
        if (threadIdx.x == 0) {
          dosa::cuda::count(&p.counters->candidates, have - wanted);
          dosa::cuda::count(&p.counters->compactions, over ? 0 : 1);
        }
        have = wanted;
        if (s.closed != 0) break;
      }
    }
    if (count == 0 && !first) break;
    const std::int32_t next = gather<C>(r, t, s, pairs, stage ^ 1);
    if (count > 0) {
      float d[C::kHeadBlocks][16];
      const ptx::Descriptor a_of(ptx::shared_address(s.codes[stage]));
      const std::uint32_t q = ptx::shared_address(s.q);
      ptx::wgmma_fence();
#pragma unroll
      for (int b = 0; b < C::kHeadBlocks; ++b) {
        const ptx::Descriptor b_of(q + static_cast<std::uint32_t>(b * C::kQueryBlockBytes));
#pragma unroll
        for (int k = 0; k < C::kSteps; ++k) {
          const std::uint64_t codes = a_of.at(static_cast<std::uint32_t>(k / 4 * C::kPanelBytes + k % 4 * 32));
          const std::uint64_t heads = b_of.at(static_cast<std::uint32_t>(k / 4 * C::kQueryPanelBytes + k % 4 * 32));
          if (k == 0) {
            ptx::wgmma_m64n32k32<false>(d[b], codes, heads);
          } else {
            ptx::wgmma_m64n32k32<true>(d[b], codes, heads);
          }
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int b = 0; b < C::kHeadBlocks; ++b) ptx::pin(d[b]);

      const int local = 16 * warp + lane / 4;
      const float scale[2] = {s.scales[stage][local], s.scales[stage][local + 8]};
      float part[2];
      parts_of(d, s.weights[t4], scale, part);
      const float scores[2] = {sum_of_quad(part[0]), sum_of_quad(part[1])};
      // Lane 0 of a quad answers for its first key, lane 1 for its second.
      score = t4 == 0 ? scores[0] : scores[1];
      key = s.keys[stage][local + (t4 == 0 ? 0 : 8)];
      if (p.matrix != nullptr) {
        if (t4 < 2 && key >= 0)
          p.matrix[t * p.matrix_row + key * p.matrix_key] = score == score ? score : __int_as_float(0x7fffffff);
      } else {
        hit = t4 < 2 && score >= s.threshold;  // never NaN
        const std::uint32_t votes = __ballot_sync(kAllLanes, hit);
        constexpr std::uint32_t kFirst = 0x11111111U;  // lanes 0 of the quads
        const std::uint32_t below = ptx::lanes_below();
        place = t4 == 0 ? static_cast<std::uint32_t>(__popc(votes & kFirst & below))
                        : static_cast<std::uint32_t>(__popc(votes & kFirst) + __popc(votes & ~kFirst & below));
        if (lane == 0) s.hits[stage][warp] = static_cast<std::uint32_t>(__popc(votes));
      }
      ++tiles;
    }
    stage ^= 1;
    count = next;
  }
  ptx::copy_wait_all();  // a closed row leaves copies behind
  if (threadIdx.x == 0) {
    s.count = have;
    if (p.matrix == nullptr) dosa::cuda::count(&p.counters->candidates, have);
    dosa::cuda::count(&p.counters->stages_plain, tiles);
  }
  __syncthreads();
}

/// Writes a row whose unit was all of it.
template <class C>
__device__ void write_selection(const Params& p, Shared<C>& s, std::int32_t t, Entry* entries) {
  const Team<kWarps> team(static_cast<int>(threadIdx.x) / 32, s.team);
  const std::uint32_t have = s.count;
  if (p.order == Order::score) {
    if (team.warp == 0) {
      const Entry* const result = sort_by_score(Team<1>(0, s.team), entries, entries + p.top_k, have);
      if (team.lane == 0) s.sorted_in_spare = result == entries ? 0 : 1;
    }
    __syncthreads();
    if (s.sorted_in_spare != 0) entries += p.top_k;
  }
  write_row<kSpan>(team, p, t, s.row, entries, static_cast<std::int32_t>(have),
                   reinterpret_cast<std::uint32_t*>(s.codes[0]));
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kResident) refine_kernel(const __grid_constant__ RefineParams r) {
  extern __shared__ std::uint8_t memory[];
  const Params& p = r.call;
  auto& s = *reinterpret_cast<Shared<C>*>(memory + (1024U - ptx::shared_address(memory) % 1024U) % 1024U);
  while (true) {
    __syncthreads();  // nobody reads the unit before any more
    if (threadIdx.x == 0) s.unit = atomicAdd(r.ticket, 1U);
    __syncthreads();
    const std::uint32_t unit = s.unit, rows = static_cast<std::uint32_t>(p.rows);
    if (unit >= rows * static_cast<std::uint32_t>(p.chunks)) return;
    const auto t = static_cast<std::int32_t>(unit % rows), chunk = static_cast<std::int32_t>(unit / rows);
    if (threadIdx.x == 0) {
      DeviceRow row = device_row(p, t);
      if (p.matrix != nullptr) row.first = row.head_first, row.last = row.tail_last;
      s.row = row;
      s.count = 0;
      s.threshold = __int_as_float(0xff800000);
      s.closed = 0;
    }
    __syncthreads();
    Entry* const entries = p.buffers + (p.chunks == 1 ? static_cast<std::int64_t>(blockIdx.x)
                                                      : static_cast<std::int64_t>(t) * p.chunks + chunk) *
                                           p.capacity;
    if (p.matrix != nullptr ? s.row.last > s.row.first : s.row.competes()) walk<C>(r, s, t, chunk, entries);
    if (p.matrix != nullptr) continue;
    if (p.chunks == 1) {
      write_selection<C>(p, s, t, entries);
    } else if (threadIdx.x == 0) {
      p.counts[static_cast<std::int64_t>(t) * p.chunks + chunk] = s.count;
    }
  }
}

template <int kHeadBlocks, int kSteps>
cudaError_t launch(const RefineParams& r, int grid, cudaStream_t stream) {
  using C = Shapes<kHeadBlocks, kSteps>;
  constexpr int kBytes = static_cast<int>(sizeof(Shared<C>)) + 1024;
  static_assert(kBytes <= 227 * 1024, "shared memory of a block");
  static_assert(kSteps > 4 || C::kResident * (kBytes + 1024) <= 228 * 1024,
                "shared memory of an SM, 1 KiB a block its own");
  const auto kernel = &refine_kernel<C>;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(grid), kThreads, kBytes, stream>>>(r);
  return cudaGetLastError();
}

template <int kHeadBlocks>
cudaError_t launch(const RefineParams& r, int grid, cudaStream_t stream) {
  if (r.call.head_dim <= 64) return launch<kHeadBlocks, 2>(r, grid, stream);
  if (r.call.head_dim <= 128) return launch<kHeadBlocks, 4>(r, grid, stream);
  return launch<kHeadBlocks, 8>(r, grid, stream);
}

}  // namespace

int refine_blocks_per_sm(std::int32_t heads) {
  return heads <= 32 ? Shapes<1, 4>::kResident : heads <= 64 ? Shapes<2, 4>::kResident : Shapes<4, 4>::kResident;
}

cudaError_t launch_refine(const RefineParams& r, int grid, cudaStream_t stream) {
  if (r.call.heads <= 32) return launch<1>(r, grid, stream);
  if (r.call.heads <= 64) return launch<2>(r, grid, stream);
  return launch<4>(r, grid, stream);
}

}  // namespace dosa::cuda
