// Exact selection from scores that lie in the shared memory of the whole chip, block after block in key order.
//
// A row's K-th score is found by digits of 12, 12 and 8 bits of its order-preserving key: every block adds its bins to
// a histogram in L2, the grid meets, every block finds the bin for itself. As soon as the bin holds few keys (random
// data: after one digit), the blocks exchange those keys instead, and each settles the rest alone. Winners and ties in
// front of a block give its slots, so that it writes its own winners in index order.
#pragma once

#include "cuda/few.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/select.cuh"

namespace dosa::cuda {

constexpr std::uint32_t kNeverSelected = 0xffffffffU;  ///< a NaN's bits, and the only ones that `ascending` maps to 0

/// Larger for a higher score, equal for -0 and +0, 0 for kNeverSelected alone (no other NaN may come).
__device__ inline std::uint32_t ascending(std::uint32_t bits) {
  const std::uint32_t b = bits == 0x80000000U ? 0U : bits;
  return b ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(b) >> 31) | 0x80000000U);
}

__device__ constexpr int few_shift(int level) { return level == 0 ? 20 : level == 1 ? 8 : 0; }
__device__ inline std::uint32_t few_digit(std::uint32_t key, int level) {
  return key >> few_shift(level) & (level == 2 ? 0xffU : 0xfffU);
}
static_assert(kFewLevels == 3 && kFewBins == 1 << 12);
static_assert(kFewMaxGrid <= 1 << 12, "a list's entry: at most 20 bits of a key, 12 of a block");

/// The search for one row's K-th key: the same in every block.
struct FewSearch {
  std::uint32_t prefix;  ///< the K-th key's bits from `shift` on; below them 0
  std::uint32_t k;       ///< so many keys of the bin win
  std::uint32_t inside;  ///< keys in the bin
  std::int32_t shift;    ///< bits that are not settled
  std::uint32_t count;   ///< winners of the row
  bool all;              ///< the whole bin wins: every key from `prefix` on
  [[nodiscard]] __device__ bool searching() const {
    return !all && shift > 0 && (shift == 32 || inside > static_cast<std::uint32_t>(kFewListed));
  }
  [[nodiscard]] __device__ bool listed() const { return !all && shift > 0; }
};

struct FewFound {
  std::uint32_t bin, before, inside;
};

__device__ inline void narrow(FewSearch& search, int level, const FewFound& found, std::uint32_t total) {
  if (level == 0) {
    search.count = min(search.k, total);
    if (total <= search.k) {  // no more selectable keys than slots
      search.prefix = 1, search.all = true;
      return;
    }
  }
  search.prefix |= found.bin << few_shift(level);
  search.k -= found.before;
  search.inside = found.inside;
  search.shift = few_shift(level);
  search.all = found.inside == search.k;
}

struct FewControl {
  std::uint64_t full[kFewMaxStages], empty[kFewMaxStages];
  DeviceRow rows[kFewRows];
  FewSearch search[kFewRows];
  std::uint32_t sums[2][kFewWarps];
  FewFound found;
  std::uint32_t start;                      ///< where this block's keys go in a row's list
  std::uint32_t above_before, ties_before;  ///< winners by score and ties in the blocks in front of this one
};
static_assert(sizeof(FewControl) <= FewSizes::kControl);

/// One block's consumers, after the last tile is scored.
struct FewSelection {
  const Params& p;
  const FewParams& f;
  FewControl& s;
  std::uint32_t* scores;         ///< [rows, tiles * 64] bits of scores; kNeverSelected: cannot win
  std::uint32_t* bits;           ///< [rows, 2, words]: keys above the bin, keys in it
  std::uint32_t* spare;          ///< where the ring was
  std::int32_t first_key, keys;  ///< this block's
  int thread, lane, warp;
  std::uint32_t barriers = 0;  ///< of the grid, times its blocks
  int turn = 0;

  static __device__ void everyone() { ptx::named_barrier<1, kFewConsumers>(); }

  /// Everything that any block wrote before is there for every block. One block an SM and a cooperative launch: all of
  /// them run.
  __device__ void whole_grid() {
    everyone();
    barriers += gridDim.x;
    if (thread == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(f.arrived) : "memory");
      std::uint32_t arrived;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(f.arrived) : "memory");
      } while (arrived < barriers);
    }
    everyone();
  }

  /// Sum of the values of the threads before this one, and of all. Two rounds of sums, so that one barrier is enough.
  __device__ std::uint32_t scan(std::uint32_t value, std::uint32_t& total) {
    std::uint32_t running = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, running, step);
      if (lane >= step) running += other;
    }
    std::uint32_t* const sums = s.sums[turn];
    turn ^= 1;
    if (lane == 31) sums[warp] = running;
    everyone();
    const std::uint32_t sum = lane < kFewWarps ? sums[lane] : 0;
    total = __reduce_add_sync(kAllLanes, sum);
    return __reduce_add_sync(kAllLanes, lane < warp ? sum : 0) + running - value;
  }

  /// The bin where the sum from the highest one down reaches k, in s.found after a barrier; the sum of all.
  template <class Load>
  __device__ std::uint32_t find(std::uint32_t k, Load&& load) {
    constexpr int kEach = kFewBins / kFewConsumers;
    static_assert(kEach == 8, "two 16-byte loads");
    const int mine = kFewConsumers - 1 - thread;
    const uint4 low = load(2 * mine), high = load(2 * mine + 1);
    const std::uint32_t own[kEach] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    std::uint32_t sum = 0, total;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += own[j];
    std::uint32_t before = scan(sum, total);
    if (before < k && k <= before + sum) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (before < k && k <= before + own[j])
          s.found = {static_cast<std::uint32_t>(8 * mine + 7 - j), before, own[j]};
        before += own[j];
      }
    }
    everyone();
    return total;
  }

  __device__ void clear(std::uint32_t* words, int count) const {
    for (int i = thread; i < count / 4; i += kFewConsumers) reinterpret_cast<uint4*>(words)[i] = make_uint4(0, 0, 0, 0);
  }
  [[nodiscard]] __device__ std::uint32_t* row_scores(int r) const { return scores + r * f.sizes.tiles * kFewTile; }
  [[nodiscard]] __device__ bool competes(int r) const { return s.rows[r].competes(); }

  /// Keys of other rows' windows cannot win.
  __device__ void close_windows() const {
    for (int r = 0; r < f.sizes.rows; ++r) {
      if (!competes(r)) continue;
      const std::int32_t first = min(max(s.rows[r].first - first_key, 0), keys);
      const std::int32_t last = min(max(s.rows[r].last - first_key, 0), keys);
      for (std::int32_t i = thread; i < first; i += kFewConsumers) row_scores(r)[i] = kNeverSelected;
      for (std::int32_t i = last + thread; i < keys; i += kFewConsumers) row_scores(r)[i] = kNeverSelected;
    }
  }

  __device__ void histogram(int r, int level, std::uint32_t* bins) const {
    const auto* const quads = reinterpret_cast<const uint4*>(row_scores(r));
    const std::uint32_t prefix = s.search[r].prefix;
    const int settled = level == 0 ? 31 : s.search[r].shift;
    const auto add = [&](std::uint32_t score) {
      const std::uint32_t key = ascending(score);
      const bool in = level == 0 ? key != 0 : ((key ^ prefix) >> settled) == 0;
      if (in) atomicAdd(&bins[few_digit(key, level)], 1U);  // lanes that meet in a bin are added up by the hardware
    };
    for (int i = thread; i < keys / 4; i += kFewConsumers) {
      const uint4 four = quads[i];
      add(four.x), add(four.y), add(four.z), add(four.w);
    }
  }

  [[nodiscard]] __device__ std::uint32_t* global_histogram(int r, int level) const {
    return level == 0 ? f.first_histogram + r * kFewBins
                      : f.later_histograms + (r * (kFewLevels - 1) + level - 1) * kFewBins;
  }

  /// Digit by digit over the whole chip, until every row's bin is settled, won as a whole, or short enough to list.
  __device__ void search() {
    for (int level = 0; level < kFewLevels; ++level) {
      bool any = false;
      for (int r = 0; r < f.sizes.rows; ++r) any |= competes(r) && s.search[r].searching();
      if (!any) return;
      clear(spare, f.sizes.rows * kFewBins);
      everyone();
      for (int r = 0; r < f.sizes.rows; ++r)
        if (competes(r) && s.search[r].searching()) histogram(r, level, spare + r * kFewBins);
      everyone();
      for (int r = 0; r < f.sizes.rows; ++r) {
        if (!competes(r) || !s.search[r].searching()) continue;
        std::uint32_t* const all = global_histogram(r, level);
#pragma unroll
        for (int j = 0; j < kFewBins / kFewConsumers; ++j) {
          const int i = thread + j * kFewConsumers;
          const std::uint32_t mine = spare[r * kFewBins + i];
          if (mine != 0) atomicAdd(&all[i], mine);
        }
      }
      whole_grid();
      for (int r = 0; r < f.sizes.rows; ++r) {
        if (!competes(r) || !s.search[r].searching()) continue;
        const auto* const all = reinterpret_cast<const uint4*>(global_histogram(r, level));
        const std::uint32_t total = find(s.search[r].k, [&](int i) { return __ldcg(all + i); });
        FewSearch search = s.search[r];
        narrow(search, level, s.found, total);
        everyone();
        if (thread == 0) s.search[r] = search;
      }
      everyone();
    }
  }

  /// Marks what wins and what may, and tells the other blocks.
  __device__ void publish(int r) {
    const FewSearch search = s.search[r];
    const std::uint32_t low = search.prefix, high = search.all ? low : low + (1U << search.shift);
    const std::uint32_t* const mine = row_scores(r);
    std::uint32_t* const above = bits + r * 2 * f.sizes.words();
    std::uint32_t* const inside = above + f.sizes.words();
    const int words = keys / 32;
#pragma unroll 4
    for (int w = warp; w < words; w += kFewWarps) {
      const std::uint32_t key = ascending(mine[32 * w + lane]);
      const std::uint32_t over = __ballot_sync(kAllLanes, key >= high);
      const std::uint32_t in = __ballot_sync(kAllLanes, key >= low && key < high);
      if (lane == 0) above[w] = over, inside[w] = in;
    }
    everyone();
    FewCounts sum{0, 0};
    for (int begin = 0; begin < words; begin += kFewConsumers) {
      const int w = begin + thread;
      std::uint32_t in = w < words ? inside[w] : 0, total;
      const auto over = static_cast<std::uint32_t>(w < words ? __popc(above[w]) : 0);
      const std::uint32_t before = scan(over | static_cast<std::uint32_t>(__popc(in)) << 16, total);
      sum.above += total & 0xffffU, sum.candidates += total >> 16;
      if (!search.listed() || total >> 16 == 0) continue;
      if (thread == 0) s.start = atomicAdd(&f.listed[r], total >> 16);
      everyone();
      std::uint32_t* to = f.lists + r * kFewListed + s.start + (before >> 16);
      for (; in != 0; in &= in - 1) {
        const std::uint32_t key = ascending(mine[32 * w + __ffs(static_cast<int>(in)) - 1]);
        *to++ = (key - low) << 12 | blockIdx.x;
      }
    }
    if (thread == 0) {
      f.counts[r * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)] = sum;
      count(&p.counters->candidates, sum.above + sum.candidates);
    }
  }
  static_assert(kFewConsumers * 32 <= 0xffff, "two counts in one scan");

  /// Settles the row's K-th key and calls put(place, key, score) for the winners of this block, places in index order.
  template <class Put>
  __device__ void settle(int r, Put&& put) {
    FewSearch search = s.search[r];
    const bool listed = search.listed();
    const std::uint32_t base = search.prefix, size = listed ? search.inside : 0;
    std::uint32_t* const histogram = spare;
    std::uint32_t* const list = spare + kFewBins;
    std::uint32_t over = 0, ties = 0;
    if (thread == 0) s.above_before = 0, s.ties_before = 0;
    for (int i = thread; i < static_cast<int>(blockIdx.x); i += kFewConsumers) {
      const uint2 other = __ldcg(reinterpret_cast<const uint2*>(f.counts) + r * static_cast<int>(gridDim.x) + i);
      over += other.x;
      if (!listed) ties += other.y;
    }
    if (listed) clear(histogram, kFewBins);
    for (std::uint32_t i = static_cast<std::uint32_t>(thread); i < size; i += kFewConsumers)
      list[i] = __ldcg(f.lists + r * kFewListed + i);
    everyone();
    while (search.listed()) {
      const int level = search.shift == few_shift(0) ? 1 : 2;
      for (std::uint32_t i = static_cast<std::uint32_t>(thread); i < size; i += kFewConsumers) {
        const std::uint32_t key = base + (list[i] >> 12);
        if (((key ^ search.prefix) >> search.shift) == 0) atomicAdd(&histogram[few_digit(key, level)], 1U);
      }
      everyone();
      const std::uint32_t total = find(search.k, [&](int i) { return reinterpret_cast<const uint4*>(histogram)[i]; });
      narrow(search, level, s.found, total);
      if (!search.listed()) break;
      clear(histogram, kFewBins);
      everyone();
    }
    // Every key from `floor` on wins, and the first `wanted` that equal `tie`.
    const std::uint32_t floor = search.all ? search.prefix : search.prefix + 1, tie = search.all ? 0 : search.prefix,
                        wanted = search.all ? 0 : search.k;
    for (std::uint32_t i = static_cast<std::uint32_t>(thread); i < size; i += kFewConsumers) {
      const std::uint32_t key = base + (list[i] >> 12);
      if ((list[i] & 0xfffU) >= blockIdx.x) continue;
      over += key >= floor ? 1U : 0U;
      ties += key == tie ? 1U : 0U;
    }
    over = __reduce_add_sync(kAllLanes, over), ties = __reduce_add_sync(kAllLanes, ties);
    if (lane == 0) atomicAdd(&s.above_before, over), atomicAdd(&s.ties_before, ties);
    everyone();
    std::uint32_t over_at = s.above_before, ties_at = s.ties_before;

    const std::uint32_t* const mine = row_scores(r);
    const std::uint32_t* const above = bits + r * 2 * f.sizes.words();
    const int words = keys / 32;
    for (int begin = 0; begin < words; begin += kFewConsumers) {
      const int w = begin + thread;
      std::uint32_t wins = w < words ? above[w] : 0, equal = w < words ? above[f.sizes.words() + w] : 0;
      // Each lane walks its word from another bit on: 32 full words would else meet in one bank.
      const auto each = [&](std::uint32_t word, auto&& visit) {
        for (std::uint32_t turned = __funnelshift_r(word, word, lane); turned != 0; turned &= turned - 1)
          visit((__ffs(static_cast<int>(turned)) - 1 + lane) & 31);
      };
      if (listed) {
        std::uint32_t still = 0;
        each(equal, [&](int bit) {
          const std::uint32_t key = ascending(mine[32 * w + bit]);
          if (key >= floor) wins |= 1U << bit;
          if (key == tie) still |= 1U << bit;
        });
        equal = still;
      }
      std::uint32_t total;
      const std::uint32_t before =
          scan(static_cast<std::uint32_t>(__popc(wins)) | static_cast<std::uint32_t>(__popc(equal)) << 16, total);
      const std::uint32_t my_over = over_at + (before & 0xffffU), my_ties = ties_at + (before >> 16);
      each(my_ties < wanted ? wins | equal : wins, [&](int bit) {
        const std::uint32_t below = (1U << bit) - 1;
        const std::uint32_t rank = my_ties + static_cast<std::uint32_t>(__popc(equal & below));
        if ((equal >> bit & 1U) != 0 && rank >= wanted) return;
        put(static_cast<std::int32_t>(my_over + static_cast<std::uint32_t>(__popc(wins & below)) + min(rank, wanted)),
            first_key + 32 * w + bit, __uint_as_float(mine[32 * w + bit]));
      });
      over_at += total & 0xffffU, ties_at += total >> 16;
    }
    everyone();  // the next row takes the list, the histogram and the sums
  }

  /// Winners, which stand in index order, take the place that so many others precede in the total order. A warp a
  /// winner, over the whole chip: K * K comparisons are few for it.
  __device__ void write_by_score(int r, const RowWriter& writer) const {
    auto* const winners = reinterpret_cast<unsigned long long*>(spare);
    const auto count = static_cast<std::int32_t>(s.search[r].count);
    const auto* const from =
        reinterpret_cast<const unsigned long long*>(f.winners + static_cast<std::int64_t>(r) * p.top_k);
    for (std::int32_t i = thread; i < count; i += kFewConsumers) winners[i] = __ldcg(from + i);
    everyone();
    const auto* const entries = reinterpret_cast<const Entry*>(winners);
    for (std::int32_t i = static_cast<std::int32_t>(blockIdx.x) * kFewWarps + warp; i < count;
         i += static_cast<std::int32_t>(gridDim.x) * kFewWarps) {
      const std::uint32_t own = ascending(__float_as_uint(entries[i].score));
      std::uint32_t place = 0;
      for (std::int32_t j = lane; j < count; j += 32) {
        const std::uint32_t other = ascending(__float_as_uint(entries[j].score));
        place += other > own || (other == own && j < i) ? 1U : 0U;
      }
      place = __reduce_add_sync(kAllLanes, place);
      if (lane == 0) writer.put(writer.base() + static_cast<std::int32_t>(place), entries[i].index, entries[i].score);
    }
    everyone();
  }

  __device__ void run() {
    bool any = false;
    for (int r = 0; r < f.sizes.rows; ++r) any |= competes(r);
    if (any) {
      close_windows();
      everyone();
      search();
      for (int r = 0; r < f.sizes.rows; ++r)
        if (competes(r)) publish(r);
      whole_grid();
    }
    for (int r = 0; r < f.sizes.rows; ++r) {
      const std::int32_t t = f.first_row + r;
      if (t >= p.rows) break;
      const RowWriter writer(p, t, s.rows[r]);
      if (competes(r)) {
        settle(r, [&](std::int32_t place, std::int32_t key, float score) {
          if (writer.by_index()) {
            writer.put(writer.base() + place, key, score);
          } else {
            f.winners[static_cast<std::int64_t>(r) * p.top_k + place] = {score, key};
          }
        });
      }
      if (static_cast<int>(blockIdx.x) == r % static_cast<int>(gridDim.x))
        writer.put_rest(Team<kFewWarps>(warp, spare), static_cast<std::int32_t>(s.search[r].count));
    }
    if (!any || p.order == Order::index) return;
    whole_grid();
    for (int r = 0; r < f.sizes.rows; ++r)
      if (competes(r)) write_by_score(r, RowWriter(p, f.first_row + r, s.rows[r]));
  }
};

}  // namespace dosa::cuda
