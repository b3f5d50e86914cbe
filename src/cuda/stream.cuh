// The scorer: keys stream through a ring in shared memory, wgmma multiplies them with the resident query heads, the
// epilogue turns accumulators into served scores in registers, and what reaches a row's threshold goes to the row's
// candidate buffer. In fused mode the same block also finds the threshold, cuts full buffers back and writes the rows.
//
// Account for one SM, 64 keys x 512 columns (16 rows of 32 heads, 8 of 64), D = 128:
//   tensor cores   64 * 512 * 128 / 4096 multiply-adds a cycle                                = 1024 cycles
//   epilogue       128 accumulators a thread, 2 warps a scheduler, per accumulator one FMNMX and one FMUL or FFMA, per
//                  query and key 7 FADD and 4 FMUL: 2.34 (H = 32), 2.17 (H = 64) instructions = 599 / 556 issue slots,
//                  and about 0.6 more an accumulator for MMA issue, scales, the threshold test and the rare path
//   shared memory  N = 128 reads 96 of 128 bytes a cycle at full MMA rate
//   L2 -> SM       64 * 132 bytes of keys: 8 bytes a cycle
// Keys are M and heads are N because then one thread holds all heads of one query (columns are permuted to that end):
// the eight served chains and their final adds need no shuffle, and the bits are those of the served kernel.
#pragma once

#include <cuda.h>

#include "cuda/heads.cuh"
#include "cuda/kernels.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/select.cuh"

namespace dosa::cuda {

/// kHeadBlocks * 32 heads (padded); kBlocks MMA blocks of 128 columns a consumer warpgroup; kSteps MMA k-steps of 32
/// dimensions (padded: a step of zeros changes no accumulator bit); kSplitKeys: both warpgroups hold the same rows and
/// take turns on tiles of 64 keys, else each holds its own rows and reads every tile.
template <int kHeadBlocks_, int kBlocks_, int kSteps_, bool kSplitKeys_, int kStages_>
struct Config {
  static constexpr int kHeadBlocks = kHeadBlocks_, kBlocks = kBlocks_, kSteps = kSteps_, kStages = kStages_;
  static constexpr bool kSplitKeys = kSplitKeys_;
  static constexpr int kPanels = (kSteps + 3) / 4;             // 128 bytes of a row: one swizzle row
  static constexpr int kStageKeys = kPanels == 1 ? 256 : 128;  // 32 KiB of codes a stage
  static constexpr int kQueryBlocks = (kSplitKeys ? 1 : 2) * kBlocks;
  static constexpr int kRows = 4 * kQueryBlocks / kHeadBlocks;           // rows of a block
  static constexpr int kGroupRows = 4 * kBlocks / kHeadBlocks;           // rows a warpgroup sees
  static constexpr int kQueries = kBlocks / kHeadBlocks;                 // queries a thread holds
  static constexpr int kTiles = kStageKeys / 64 / (kSplitKeys ? 2 : 1);  // a warpgroup's tiles a stage
  static constexpr bool kWeightsInRegisters = kBlocks <= 2;
  // Two accumulators are 128 registers, two blocks' weights 64. What is left goes to the producer, which few rows keep
  // busier. 2 * consumer + producer = 504: a launch of 384 threads gets 168 each.
  static constexpr int kConsumerRegisters = kBlocks == 1 ? 208 : kSplitKeys ? 232 : 240;
  static constexpr int kProducerRegisters = 504 - 2 * kConsumerRegisters;
  static constexpr int kQueue = kTiles * kQueries * 64;  // pairs a warp scores in a stage: all of them fit
  static constexpr int kPanelBytes = kStageKeys * 128;
  static constexpr int kQueryBlockBytes = 128 * 128 * kPanels;
  static_assert(kBlocks % kHeadBlocks == 0);
  static_assert((kQueue & (kQueue - 1)) == 0 && 32 * kQueue >= 256, "notes double as the bits of whole stretches");
  static_assert(kRows <= 32, "one lane a row");
  static_assert((kTiles * kBlocks) % 2 == 0, "accumulators alternate");
};

constexpr int kConsumers = 256;  // two warpgroups: one's epilogue runs under the other's MMA
constexpr int kThreads = kConsumers + 128;

/// A score that reached its row's threshold; `place`: the thread, its MMA of the stage from bit 16 on, and which of its
/// two keys.
constexpr std::uint32_t kSecondKey = 1U << 31;
struct alignas(8) Noted {
  float score;
  std::uint32_t place;
};

template <class C>
struct Shared {
  alignas(1024) std::uint8_t q[C::kQueryBlocks * C::kQueryBlockBytes];
  alignas(1024) std::uint8_t codes[C::kStages][C::kPanels * C::kPanelBytes];
  alignas(16) float scales[C::kStages][C::kStageKeys];
  std::int32_t groups[C::kStages][C::kStageKeys / 8];               ///< first key of every 8
  alignas(16) float weights[C::kWeightsInRegisters ? 4 : 4 * 132];  ///< rows of 128, 4 apart in banks
  alignas(16) Noted notes[8][C::kQueue];
  alignas(16) std::uint32_t teams[8][Team<1>::kWords];
  alignas(8) std::uint64_t full[C::kStages], empty[C::kStages], decision;
  DeviceRow rows[C::kRows];
  std::int32_t first[C::kRows], last[C::kRows];  ///< keys that may still enter in this walk
  float thresholds[C::kRows];
  std::uint32_t counts[C::kRows];
  std::uint32_t sampled;  ///< bit r: row r's threshold is a guess
  std::uint32_t again;
  Entry* buffers;  ///< row 0's of this unit
  std::int32_t block_row;
};

/// One walk over keys: `stages` stages from key `begin`, or the groups of a sample.
struct Walk {
  std::int32_t begin = 0, stages = 0;
  std::int32_t sample_groups = 0, sample_begin = 0;  ///< groups in all; first of this walk's
};

template <class C>
__device__ Walk walk_of(const Params& p, const Part& part, bool sampling, int chunk) {
  Walk walk;
  if (sampling) {
    const std::int32_t size = sample_size(p, part, C::kStageKeys);
    const std::int32_t all = size / C::kStageKeys;
    const std::int32_t from = p.mode == Mode::sample ? all * chunk / p.chunks : 0;
    const std::int32_t to = p.mode == Mode::sample ? all * (chunk + 1) / p.chunks : all;
    walk.stages = to - from;
    walk.sample_groups = size / 8;
    walk.sample_begin = from * (C::kStageKeys / 8);
    return walk;
  }
  const std::int32_t begin = part.first / C::kStageKeys * C::kStageKeys;
  const std::int64_t all = (part.last - begin + C::kStageKeys - 1) / C::kStageKeys;
  const auto from = static_cast<std::int32_t>(all * chunk / p.chunks);
  const auto to = static_cast<std::int32_t>(all * (chunk + 1) / p.chunks);
  walk.begin = begin + from * C::kStageKeys;
  walk.stages = to - from;
  return walk;
}

struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

/// Which rows of a block take part at all; lane r answers for row r.
__device__ inline bool takes_part(const Params& p, std::int32_t t, const DeviceRow& row) {
  if (t >= p.rows) return false;
  if (p.mode == Mode::all_scores) return row.tail_last > row.head_first;
  if (p.mode == Mode::repeat && p.repeats[t] == 0) return false;
  return row.competes();
}

template <class C>
__device__ DeviceRow lane_row(const Params& p, int block) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  DeviceRow row;
  if (lane < C::kRows) row = device_row(p, block * C::kRows + lane);
  if (p.mode == Mode::all_scores) row.first = row.head_first, row.last = row.tail_last;
  return row;
}

// ---------------------------------------------------------------------------------------------------------------------
// Producer.

/// First key of group g (8 keys) of a stage.
template <class C>
__device__ std::int32_t group_key(const Walk& walk, const Part& part, int stage, int g) {
  if (walk.sample_groups == 0) return walk.begin + stage * C::kStageKeys + 8 * g;
  return sample_group(part, walk.sample_begin + stage * (C::kStageKeys / 8) + g, walk.sample_groups);
}

/// Where a key's codes and scale lie; nothing for keys no row of the part may see and for pages that do not exist.
__device__ inline KeyAddress visible_key(const Params& p, const KeySource& keys, const Part& part, std::int32_t key) {
  if (key < part.first || key >= part.last) return {nullptr, nullptr};
  const KeyAddress address = keys.locate(key);
  if (address.codes == nullptr) atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status), kStatusPage);
  return address;
}

/// Page coordinate of a box: a page past the cache (zeros arrive) where nothing visible lies or the page is not there.
__device__ inline std::int32_t box_page(const Params& p, const Part& part, std::int32_t key, std::int32_t box_keys) {
  if (!p.is_paged) return 0;
  const auto nowhere = static_cast<std::int32_t>(p.paged.pages);
  if (key + box_keys <= part.first || key >= part.last) return nowhere;
  const auto& table = p.paged.block_table;
  const std::int32_t page = table.data[part.request * table.strides[0] + (key >> p.page_shift) * table.strides[1]];
  if (page >= 0 && page < nowhere) return page;
  atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status), kStatusPage);
  return nowhere;
}

/// Scales of a box of keys as one piece of memory whose address and size are multiples of 16 bytes; null where they are
/// not that.
__device__ inline const float* box_scales(const Params& p, std::int32_t key, std::int32_t box_keys, std::int32_t page) {
  if (!p.is_paged) return p.scales_together && key + box_keys <= p.keys ? p.contiguous.scales.data + key : nullptr;
  if (page == static_cast<std::int32_t>(p.paged.pages)) return nullptr;
  return reinterpret_cast<const float*>(p.paged.cache + page * p.paged.page_stride +
                                        (std::int64_t{p.head_dim} << p.page_shift)) +
         (key & (p.paged.page_size - 1));
}

/// One warp fills a stage: a lane a box, codes by tensor copies, scales by plain bulk copies. Keys that no row may see
/// may arrive with any value: notes are checked against their rows' windows.
template <class C>
__device__ void fill_stage_tma(const Params& p, const CUtensorMap& map, const CUtensorMap& sample_map, Shared<C>& s,
                               const Ring& ring, const Walk& walk, const Part& part, int stage) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kGroups = C::kStageKeys / 8;
  std::uint64_t* const full = &s.full[ring.stage];
  std::int32_t my_group = 0;
  if (lane < kGroups) s.groups[ring.stage][lane] = my_group = group_key<C>(walk, part, stage, lane);
  const bool sampling = walk.sample_groups != 0;
  const std::int32_t box = sampling ? 8 : p.box_rows;
  std::uint32_t bytes = 0;
  bool loose = false;
  std::int32_t key = 0;
  if (lane * box < C::kStageKeys) {  // never more than 32 boxes: a box has 8 keys or more
    key = sampling ? my_group : walk.begin + stage * C::kStageKeys + lane * box;
    const std::int32_t page = box_page(p, part, key, box);
    const std::int32_t row = p.is_paged ? key & (p.paged.page_size - 1) : key;
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel)
      ptx::tma_load(s.codes[ring.stage] + panel * C::kPanelBytes + lane * box * 128, sampling ? &sample_map : &map,
                    full, panel * 128, row, page);
    bytes = static_cast<std::uint32_t>(C::kPanels * 128 * box);
    if (const float* const scales = box_scales(p, key, box, page); scales != nullptr) {
      ptx::bulk_load(&s.scales[ring.stage][lane * box], scales, static_cast<std::uint32_t>(4 * box), full);
      bytes += static_cast<std::uint32_t>(4 * box);
    } else {
      loose = true;
    }
  }
  // Scales that are no such piece: the end of the keys, odd alignment or stride, pages that are not there.
  for (std::uint32_t waiting = __ballot_sync(kAllLanes, loose); waiting != 0; waiting &= waiting - 1) {
    const int owner = __ffs(static_cast<int>(waiting)) - 1;
    const std::int32_t first = __shfl_sync(kAllLanes, key, owner);
    const KeySource keys = keys_of_request(p, part.request);
    for (int j = lane; j < box; j += 32) {
      const KeyAddress address = visible_key(p, keys, part, first + j);
      s.scales[ring.stage][owner * box + j] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
    }
  }
  ptx::mbarrier_arrive_expect(full, bytes);
}

template <class C>
__device__ void fill_stage_plain(const Params& p, Shared<C>& s, const Ring& ring, const Walk& walk, const Part& part,
                                 const KeySource& keys, int stage) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  constexpr int kPieces = C::kPanels * 8;  // of 16 bytes, a key
  for (int i = thread; i < C::kStageKeys / 8; i += 128) s.groups[ring.stage][i] = group_key<C>(walk, part, stage, i);
  for (int i = thread; i < C::kStageKeys; i += 128) {
    const KeyAddress address = visible_key(p, keys, part, group_key<C>(walk, part, stage, i / 8) + i % 8);
    s.scales[ring.stage][i] = address.scale != nullptr ? *address.scale : __int_as_float(0x7fffffff);
  }
  for (int i = thread; i < C::kStageKeys * kPieces; i += 128) {
    const int local = i / kPieces, piece = i % kPieces;
    const std::int32_t key = group_key<C>(walk, part, stage, local / 8) + local % 8;
    std::uint8_t* const to =
        s.codes[ring.stage] + piece / 8 * C::kPanelBytes + local * 128 + (((piece % 8) ^ (local & 7)) << 4);
    const KeyAddress address = piece * 16 < p.head_dim ? visible_key(p, keys, part, key) : KeyAddress{nullptr, nullptr};
    ptx::copy_piece(to, address.codes != nullptr ? address.codes + piece * 16 : nullptr, p.code_alignment);
  }
  ptx::copy_wait_all();
  ptx::fence_async_proxy();
  ptx::mbarrier_arrive(&s.full[ring.stage]);
}

template <class C>
__device__ void produce(const Params& p, const CUtensorMap& map, const CUtensorMap& sample_map, Shared<C>& s) {
  const bool tma = p.loader == Loader::tma;
  if (tma && threadIdx.x >= kConsumers + 32) return;
  Ring ring;
  ring.phase = 1;  // every stage starts empty
  std::uint32_t decisions = 0;
  std::uint64_t filled = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < p.blocks * p.chunks; unit += static_cast<int>(gridDim.x)) {
    const int block = unit % p.blocks, chunk = unit / p.blocks;
    const DeviceRow row = lane_row<C>(p, block);
    const int lane = static_cast<int>(threadIdx.x % 32);
    std::uint32_t waiting = __ballot_sync(kAllLanes, lane < C::kRows && takes_part(p, block * C::kRows + lane, row));
    while (waiting != 0) {
      const Part part = next_part(waiting, row);
      waiting &= ~part.rows;
      bool sampling = p.mode == Mode::sample || (p.mode == Mode::fused && sample_size(p, part, C::kStageKeys) > 0);
      while (true) {
        const Walk walk = walk_of<C>(p, part, sampling, chunk);
        for (int stage = 0; stage < walk.stages; ++stage) {
          ptx::mbarrier_wait(&s.empty[ring.stage], ring.phase);
          if (tma) {
            fill_stage_tma<C>(p, map, sample_map, s, ring, walk, part, stage);
          } else {
            fill_stage_plain<C>(p, s, ring, walk, part, keys_of_request(p, part.request), stage);
          }
          ++filled;
          ring.advance<C::kStages>();
        }
        if (p.mode != Mode::fused) break;
        if (sampling) {
          sampling = false;
          continue;
        }
        ptx::mbarrier_wait(&s.decision, decisions & 1);
        ++decisions;
        if (s.again == 0) break;
      }
    }
  }
  if (threadIdx.x == kConsumers) count(tma ? &p.counters->stages_tma : &p.counters->stages_plain, filled);
}

// ---------------------------------------------------------------------------------------------------------------------
// Consumers.

template <class C>
__device__ void load_queries(const Params& p, Shared<C>& s, int block) {
  constexpr int kPieces = C::kPanels * 8;
  for (int i = static_cast<int>(threadIdx.x); i < C::kQueryBlocks * 128 * kPieces; i += kConsumers) {
    const int piece = i % kPieces, column = i / kPieces % 128, query_block = i / kPieces / 128;
    // Column 8i + 2t + e: head 2i + e of query t.
    const int query = column % 8 / 2, head = query_block % C::kHeadBlocks * 32 + column / 8 * 2 + column % 2;
    const int t = block * C::kRows + query_block / C::kHeadBlocks * 4 + query;
    std::uint8_t* const to = s.q + query_block * C::kQueryBlockBytes + piece / 8 * 128 * 128 + column * 128 +
                             (((piece % 8) ^ (column & 7)) << 4);
    *reinterpret_cast<uint4*>(to) = query_piece(p, t, head, piece);
  }
}

/// Adds 32 heads to the eight chains of two keys. The first block starts with head group 1: the served order.
template <bool kFirst>
__device__ void chain(const float (&d)[64], const float* w, float (&sum)[2][8]) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
#pragma unroll
    for (int key = 0; key < 2; ++key) {
      const auto r = [&](int group) { return relu(d[4 * (4 * group + c / 2) + 2 * key + c % 2]); };
      float& x = sum[key][c];
      if constexpr (kFirst) {
        x = __fmul_rn(w[8 + c], r(1));
        x = __fmaf_rn(w[c], r(0), x);
      } else {
        x = __fmaf_rn(w[c], r(0), x);
        x = __fmaf_rn(w[8 + c], r(1), x);
      }
      x = __fmaf_rn(w[16 + c], r(2), x);
      x = __fmaf_rn(w[24 + c], r(3), x);
    }
  }
}

__device__ inline float served_score(const float (&sum)[8], float scale) {
  float part[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) part[t] = __fmul_rn(__fadd_rn(sum[2 * t], sum[2 * t + 1]), scale);
  return __fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3]));
}

/// A note goes where it belongs: a candidate to its row's buffer, or a score to the matrix.
template <class C>
__device__ __forceinline__ void file_note(const Params& p, Shared<C>& s, const Noted& note, int own_first, int stage) {
  const int thread = static_cast<int>(note.place & 0xffffU), mma = static_cast<int>(note.place >> 16 & 0xffU);
  const int tile = C::kSplitKeys ? 2 * (mma / C::kBlocks) + thread / 128 : mma / C::kBlocks;
  const int local = tile * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + (note.place >= kSecondKey ? 8 : 0);
  const int row = own_first + mma % C::kBlocks / C::kHeadBlocks * 4 + thread % 4;
  const std::int32_t key = s.groups[stage][local / 8] + local % 8;
  if (key < s.first[row] || key >= s.last[row]) return;
  if (p.matrix != nullptr) {
    p.matrix[static_cast<std::int64_t>(s.block_row + row) * p.matrix_row + key * p.matrix_key] =
        note.score == note.score ? note.score : __int_as_float(0x7fffffff);
  } else if (note.score == note.score) {
    const std::uint32_t at = ptx::shared_add(&s.counts[row], 1);
    s.buffers[static_cast<std::int64_t>(row) * p.row_stride + at] = {note.score, key};
  }
}

template <class C>
__device__ void file_notes(const Params& p, Shared<C>& s, int warp, int own_first, int stage, std::uint32_t noted) {
  for (std::uint32_t i = threadIdx.x % 32; i < noted; i += 32) file_note(p, s, s.notes[warp][i], own_first, stage);
}

template <class C>
__device__ void consume(const Params& p, Shared<C>& s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  // From lane 0, so that the compiler knows it for uniform and keeps descriptors in uniform registers.
  const int warp = __shfl_sync(kAllLanes, thread / 32, 0);
  const int group = warp / 4;             // warpgroup
  const int g = lane / 4, t4 = lane % 4;  // accumulator row and query of the quad
  const Team<1> team(0, s.teams[warp]);
  constexpr int kAll = 1, kMine = 2;  // named barriers: both warpgroups; one (2 and 3)
  const auto room = static_cast<std::uint32_t>(p.capacity - 2 * C::kStageKeys);
  const auto everyone = [] { ptx::named_barrier<kAll, kConsumers>(); };
  const int own_first = C::kSplitKeys ? 0 : group * C::kGroupRows;  // rows this warpgroup sees
  // Rows shared out among the warps of those who own them.
  const int owner_warp = C::kSplitKeys ? warp : warp % 4, owner_warps = C::kSplitKeys ? 8 : 4;

  const std::uint32_t q_address =
      ptx::shared_address(s.q) +
      (C::kSplitKeys ? 0U : static_cast<std::uint32_t>(group * C::kBlocks * C::kQueryBlockBytes));
  Ring ring;
  for (int unit = static_cast<int>(blockIdx.x); unit < p.blocks * p.chunks; unit += static_cast<int>(gridDim.x)) {
    const int block = unit % p.blocks, chunk = unit / p.blocks;
    const std::int32_t block_row = block * C::kRows;
    // Row r's buffer lies r * chunks * capacity further.
    Entry* const buffers =
        p.buffers + (p.mode == Mode::fused ? static_cast<std::int64_t>(blockIdx.x) * C::kRows
                                           : static_cast<std::int64_t>(block_row) * p.chunks + chunk) *
                        p.capacity;
    const DeviceRow row = lane_row<C>(p, block);
    std::uint32_t waiting = __ballot_sync(kAllLanes, lane < C::kRows && takes_part(p, block_row + lane, row));
    if (waiting == 0 && p.mode != Mode::fused) continue;  // counts of rows that do not compete are never read
    everyone();  // nobody reads the previous unit's rows, queries or counts any more
    if (thread < C::kRows) s.rows[thread] = row, s.counts[thread] = 0;
    if (thread == 0) s.buffers = buffers, s.block_row = block_row;
    load_queries<C>(p, s, block);
    if constexpr (!C::kWeightsInRegisters) {
      for (int i = thread; i < 4 * 128; i += kConsumers)
        s.weights[i / 128 * 132 + i % 128] = weight_of(p, block_row + i / 128, i % 128);
    }
    float weights[C::kWeightsInRegisters ? C::kBlocks : 1][32];
    if constexpr (C::kWeightsInRegisters) {
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
        for (int j = 0; j < 32; ++j)
          weights[b][j] =
              weight_of(p, block_row + own_first + b / C::kHeadBlocks * 4 + t4, b % C::kHeadBlocks * 32 + j);
    }
    ptx::fence_async_proxy();
    everyone();

    while (waiting != 0) {
      const Part part = next_part(waiting, row);
      waiting &= ~part.rows;
      enum class Pass { sample, main, again };
      Pass pass = p.mode == Mode::sample || (p.mode == Mode::fused && sample_size(p, part, C::kStageKeys) > 0)
                      ? Pass::sample
                      : Pass::main;
      std::uint32_t streaming = part.rows;  // rows that take candidates in this pass
      if (thread == 0) s.sampled = 0;
      while (true) {
        everyone();
        if (thread < C::kRows) {
          const bool in = ((streaming >> thread) & 1U) != 0;
          s.first[thread] = in ? row.first : 0;
          s.last[thread] = in ? row.last : 0;
          const float none = __int_as_float(0xff800000);
          if (!in) {
            s.thresholds[thread] = -none;
          } else if (p.mode == Mode::stream && p.thresholds != nullptr) {
            s.thresholds[thread] = p.thresholds[block_row + thread];
          } else if (pass != Pass::main || ((s.sampled >> thread) & 1U) == 0) {
            s.thresholds[thread] = none;
          }
          if (in) s.counts[thread] = 0;
        }
        everyone();

        const Walk walk = walk_of<C>(p, part, pass == Pass::sample, chunk);
        std::uint32_t noted = 0;  // in the stage before, not filed yet
        int noted_stage = 0;
        for (int stage_index = 0; stage_index < walk.stages; ++stage_index) {
          float threshold[C::kQueries];
#pragma unroll
          for (int b = 0; b < C::kQueries; ++b) threshold[b] = s.thresholds[own_first + 4 * b + t4];
          const std::uint32_t codes = ptx::shared_address(s.codes[ring.stage]);
          const ptx::Descriptor a_of(codes), b_of(q_address);
          constexpr int kMmas = C::kTiles * C::kBlocks;
          float d[2][64];
          float sum[2][8];
          float scale[2];
          const auto tile_of = [&](int mma) {
            const int tile = mma / C::kBlocks;
            return C::kSplitKeys ? 2 * tile + group : tile;
          };
          const auto issue = [&](float(&acc)[64], int mma) {
            const std::uint32_t a = static_cast<std::uint32_t>(tile_of(mma)) * 64 * 128;
            const std::uint32_t b = static_cast<std::uint32_t>(mma % C::kBlocks) * C::kQueryBlockBytes;
            ptx::wgmma_fence();
#pragma unroll
            for (int k = 0; k < C::kSteps; ++k) {
              const std::uint32_t ka = static_cast<std::uint32_t>(k / 4 * C::kPanelBytes + k % 4 * 32);
              const std::uint32_t kb = static_cast<std::uint32_t>(k / 4 * 128 * 128 + k % 4 * 32);
              if (k == 0) {
                ptx::wgmma_m64n128k32<false>(acc, a_of.at(a + ka), b_of.at(b + kb));
              } else {
                ptx::wgmma_m64n128k32<true>(acc, a_of.at(a + ka), b_of.at(b + kb));
              }
            }
            ptx::wgmma_commit();
          };
          std::uint32_t notes = ptx::shared_address(s.notes[warp]);  // where the next note goes
          ptx::mbarrier_wait(&s.full[ring.stage], ring.phase);
          if (noted > 32) {  // a loop: not while an MMA is in flight, or ptxas serialises them all (C7514)
            file_notes(p, s, warp, own_first, noted_stage, noted);
            __syncwarp();
            noted = 0;
          }
          issue(d[0], 0);
          issue(d[1], 1);
          // Under the first two MMAs: the notes of the stage before, its release, and the vote on full buffers.
          bool crowded = false;
          if (stage_index > 0) {
            if (static_cast<std::uint32_t>(lane) < noted) file_note(p, s, s.notes[warp][lane], own_first, noted_stage);
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(&s.empty[noted_stage]);
            // The last thread to add to a row sees its whole count before the barrier, so the vote is exact. Two stages
            // can be noted and not filed when a buffer is cut back.
            const bool mine = *static_cast<volatile std::uint32_t*>(&s.counts[own_first + lane % C::kGroupRows]) > room;
            crowded = C::kSplitKeys ? ptx::named_barrier_any<kAll, kConsumers>(mine)
                      : group == 0  ? ptx::named_barrier_any<kMine, 128>(mine)
                                    : ptx::named_barrier_any<kMine + 1, 128>(mine);
          }
#pragma unroll
          for (int mma = 0; mma < kMmas; ++mma) {
            float(&acc)[64] = d[mma % 2];
            if (mma + 1 < kMmas) {
              ptx::wgmma_wait<1>();
            } else {
              ptx::wgmma_wait<0>();
            }
            ptx::pin(acc);
            constexpr int kHB = C::kHeadBlocks;
            const int b = mma % C::kBlocks;
            const int local = tile_of(mma) * 64 + warp % 4 * 16 + g;
            if (b == 0) scale[0] = s.scales[ring.stage][local], scale[1] = s.scales[ring.stage][local + 8];
            if constexpr (C::kWeightsInRegisters) {
              if (b % kHB == 0) {
                chain<true>(acc, weights[b], sum);
              } else {
                chain<false>(acc, weights[b], sum);
              }
            } else {
              const float* const w = &s.weights[t4 * 132 + b * 32];
              float loaded[32];
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const float4 four = *reinterpret_cast<const float4*>(w + 4 * j);
                loaded[4 * j] = four.x, loaded[4 * j + 1] = four.y, loaded[4 * j + 2] = four.z,
                           loaded[4 * j + 3] = four.w;
              }
              if (b % kHB == 0) {
                chain<true>(acc, loaded, sum);
              } else {
                chain<false>(acc, loaded, sum);
              }
            }
            if (b % kHB == kHB - 1) {
              const float score0 = served_score(sum[0], scale[0]), score1 = served_score(sum[1], scale[1]);
              const float limit = threshold[b / kHB];
              // Unordered: NaN takes the rare path too, where all_scores wants it and selection drops it.
              const bool hit = !(score0 < limit) || !(score1 < limit);
              if (__any_sync(kAllLanes, hit)) {
                // Only votes and stores here: nothing waits for memory while tensor cores could work.
                const std::uint32_t hits0 = __ballot_sync(kAllLanes, !(score0 < limit));
                const std::uint32_t hits1 = __ballot_sync(kAllLanes, !(score1 < limit));
                const std::uint32_t place = ptx::thread_again() | static_cast<std::uint32_t>(mma) << 16;
                const std::uint32_t below = ptx::lanes_below();
                if (!(score0 < limit)) ptx::shared_store(notes + 8 * __popc(hits0 & below), score0, place);
                notes += 8 * __popc(hits0);
                if (!(score1 < limit)) ptx::shared_store(notes + 8 * __popc(hits1 & below), score1, place | kSecondKey);
                notes += 8 * __popc(hits1);
              }
            }
            if (mma + 2 < kMmas) issue(acc, mma + 2);
          }
          __syncwarp();  // every lane's notes are there for every lane
          noted = (notes - ptx::shared_address(s.notes[warp])) / 8;
          noted_stage = ring.stage;
          ring.advance<C::kStages>();
          if (crowded) {
            for (int r = owner_warp; r < C::kGroupRows; r += owner_warps) {
              const int at = own_first + r;
              const std::uint32_t have = s.counts[at], wanted = static_cast<std::uint32_t>(s.rows[at].free_slots);
              if (have <= room) continue;
              Entry* const entries = buffers + static_cast<std::int64_t>(at) * p.row_stride;
              const std::uint64_t limit = team.bound({entries, 0, &s.counts[at], 1, 1}, wanted);
              const std::uint64_t worst = compact(team, entries, have, limit);
              if (lane == 0) {
                // Later keys have larger indices: an equal score can no longer enter.
                const float kth = score_of(worst);
                const bool closed = kth == __int_as_float(0x7f800000);
                s.thresholds[at] = closed ? kth : next_above(kth);
                if (closed) s.last[at] = s.first[at];
                s.counts[at] = wanted;
                count(&p.counters->compactions, 1);
                count(&p.counters->candidates, have - wanted);
              }
            }
            if constexpr (C::kSplitKeys) {
              everyone();
            } else if (group == 0) {
              ptx::named_barrier<kMine, 128>();
            } else {
              ptx::named_barrier<kMine + 1, 128>();
            }
          }
        }
        if (walk.stages > 0) {
          __syncwarp();
          file_notes(p, s, warp, own_first, noted_stage, noted);
          __syncwarp();
          if (lane == 0) ptx::mbarrier_arrive(&s.empty[noted_stage]);
        }
        everyone();
        if (p.mode == Mode::sample && chunk == 0 && thread < C::kRows && ((part.rows >> thread) & 1U) != 0) {
          const std::int32_t size = sample_size(p, part, C::kStageKeys);
          p.ranks[block_row + thread] = size == 0 ? 0U : static_cast<std::uint32_t>(sample_rank(row, part, size));
        }
        if (p.mode != Mode::fused) break;

        if (pass == Pass::sample) {
          const std::int32_t sampled = walk.sample_groups * 8;
          for (int r = warp; r < C::kRows; r += 8) {
            if (((part.rows >> r) & 1U) == 0) continue;
            const std::int32_t rank = sample_rank(s.rows[r], part, sampled);
            const std::uint32_t have = s.counts[r];
            if (static_cast<std::uint32_t>(rank) >= have) continue;
            const Pieces pieces{buffers + static_cast<std::int64_t>(r) * p.capacity, 0, &s.counts[r], 1, 1};
            const std::uint64_t limit = team.bound(pieces, static_cast<std::uint32_t>(rank));
            const std::uint64_t key = team.largest(pieces, limit);
            if (lane == 0) {
              s.thresholds[r] = score_of(key);
              atomicOr(&s.sampled, 1U << r);
              count(&p.counters->sampled_rows, 1);
            }
          }
          pass = Pass::main;
          continue;
        }
        // The guess holds where as many keys reached it as the row has slots; else the row streams again without it.
        const bool low = lane < C::kRows && pass == Pass::main &&
                         ((part.rows >> lane) & (s.sampled >> lane) & 1U) != 0 &&
                         s.counts[lane] < static_cast<std::uint32_t>(s.rows[lane].free_slots);
        streaming = __ballot_sync(kAllLanes, low);
        everyone();
        if (thread == 0) {
          s.again = streaming;
          ptx::mbarrier_arrive(&s.decision);
          count(&p.counters->repeats, static_cast<std::uint64_t>(__popc(streaming)));
        }
        if (streaming == 0) break;
        pass = Pass::again;
      }
    }

    everyone();
    if (p.mode == Mode::fused) {
      for (int r = warp; r < C::kRows; r += 8) {
        const std::int32_t t = block_row + r;
        if (t >= p.rows) break;
        Entry* entries = buffers + static_cast<std::int64_t>(r) * p.capacity;
        std::uint32_t have = s.counts[r];
        const auto wanted = static_cast<std::uint32_t>(s.rows[r].free_slots);
        if (lane == 0) count(&p.counters->candidates, have);
        if (have > wanted) {
          const std::uint64_t limit = team.bound({entries, 0, &s.counts[r], 1, 1}, wanted);
          compact(team, entries, have, limit);
          have = wanted;
        }
        if (p.order == Order::score) entries = sort_by_score(team, entries, entries + p.top_k, have);
        write_row<C::kQueue>(team, p, t, s.rows[r], entries, static_cast<std::int32_t>(have),
                             reinterpret_cast<std::uint32_t*>(s.notes[warp]));
      }
    } else if (p.mode != Mode::all_scores && thread < C::kRows && block_row + thread < p.rows &&
               (p.mode != Mode::repeat || p.repeats[block_row + thread] != 0)) {
      p.counts[static_cast<std::int64_t>(block_row + thread) * p.chunks + chunk] = s.counts[thread];
      count(&p.counters->candidates, p.mode == Mode::sample ? 0 : s.counts[thread]);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) stream_kernel(const Params p, const __grid_constant__ CUtensorMap map,
                                                             const __grid_constant__ CUtensorMap sample_map) {
  extern __shared__ std::uint8_t memory[];
  const std::uint32_t base = ptx::shared_address(memory);
  auto& s = *reinterpret_cast<Shared<C>*>(memory + ((1024U - base % 1024U) % 1024U));
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], p.loader == Loader::tma ? 32 : 128);
      ptx::mbarrier_init(&s.empty[i], kConsumers / 32);
    }
    ptx::mbarrier_init(&s.decision, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    ptx::registers_down<C::kProducerRegisters>();
    produce<C>(p, map, sample_map, s);
  } else {
    ptx::registers_up<C::kConsumerRegisters>();
    consume<C>(p, s);
  }
}

template <class C>
Kernel kernel_of() {
  static_assert(sizeof(Shared<C>) + 1024 <= 227 * 1024, "shared memory of an SM");
  return {C::kRows, C::kStageKeys, static_cast<int>(sizeof(Shared<C>)) + 1024,
          reinterpret_cast<const void*>(&stream_kernel<C>)};
}

}  // namespace dosa::cuda
