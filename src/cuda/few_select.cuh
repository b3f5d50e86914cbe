// Exact selection from scores that lie in the shared memory of the whole chip, block after block in key order.
//
// While keys are scored, the first eighth of every block goes into a coarse histogram of the row (11 bits of the
// order-preserving key). One warp of each block adds it to the chip's and finds the bin where so many keys as the row
// has slots are reached: a bound that the K-th key cannot lie under, proven by counting. From then on only keys that
// reach it are looked at (random data: one or two in a hundred). They are marked and counted in bins that divide the
// distance from the bound to the best key seen so far, so fine that the K-th key shares its bin with a handful.
//
// After the last tile: the bins are added up in L2, the grid meets, every block finds the K-th key's bin; the blocks
// exchange the keys of that bin and how many they hold above it, the grid meets again, every block finds the K-th key
// among the listed ones and writes its own winners in index order. Bins that hold too much for a list are divided
// further, one meeting of the grid each. Nothing is guessed: a bound that is loose costs time, never a key.
//
// Rows are served side by side, each by a team of warps.
#pragma once

#include "cuda/few.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/select.cuh"

namespace dosa::cuda {

constexpr std::uint32_t kNeverSelected = 0xffffffffU;  ///< a NaN's bits, and the only ones that `ascending` maps to 0

/// Larger for a higher score, equal for -0 and +0, 0 for kNeverSelected alone (no other NaN may come).
__device__ inline std::uint32_t ascending(std::uint32_t bits) {
  const std::uint32_t b = bits == 0x80000000U ? 0U : bits;
  return b ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(b) >> 31) | 0x80000000U);
}
constexpr int kFewEarlyShift = 21;
static_assert(kFewBins == 1 << 11 && kFewEarlyShift == 32 - 11);

/// Bits of a key under its bin, where 2048 bins divide low..last.
__device__ inline std::int32_t few_shift(std::uint32_t low, std::uint32_t last) {
  return max(32 - __clz(static_cast<int>(last - low)) - 11, 0);
}

/// The search for one row's K-th key: the same in every block.
struct FewSearch {
  std::uint32_t low, last;  ///< the K-th key is one of these
  std::uint32_t k;          ///< so many of the keys in low..last win, and all above
  std::uint32_t inside;     ///< keys in low..last
  std::uint32_t count;      ///< winners of the row
  std::int32_t shift;       ///< of the bins that divide low..last
  bool all;                 ///< every key from `low` on wins
  [[nodiscard]] __device__ bool listed() const { return !all && low != last; }
  [[nodiscard]] __device__ bool searching() const {
    return listed() && inside > static_cast<std::uint32_t>(kFewListed);
  }
  /// Keys beyond the last bin, which only a first division has, are counted there.
  [[nodiscard]] __device__ std::uint32_t bin(std::uint32_t key) const {
    return min((key - low) >> shift, static_cast<std::uint32_t>(kFewBins - 1));
  }
};

struct FewFound {
  std::uint32_t bin, before, inside;
};

/// From low..last to the bin that was found.
__device__ inline void narrow(FewSearch& search, const FewFound& found) {
  const std::uint32_t low = search.low + (found.bin << search.shift), width = (1U << search.shift) - 1;
  if (found.bin != kFewBins - 1 && search.last - low > width) search.last = low + width;
  search.low = low;
  search.k -= found.before;
  search.inside = found.inside;
  search.all = found.inside == search.k;
  search.shift = few_shift(search.low, search.last);
}

/// The tiles of one block: contiguous, in key order.
struct FewWalk {
  Part part;
  std::int32_t first_key = 0, tiles = 0;
};

struct FewControl {
  std::uint64_t full[kFewMaxStages], empty[kFewMaxStages];
  std::uint64_t scales[kFewMaxTiles / kFewScaleTiles];
  std::uint64_t early, bound;  ///< the first tiles are counted; the bounds are known
  DeviceRow rows[kFewRows];
  FewSearch search[kFewRows];
  FewWalk walk;
  std::uint32_t first[kFewRows], last[kFewRows];  ///< of the block's keys, those the row competes for
  float floor[kFewRows];                          ///< a key under it cannot reach the row's bound
  std::uint32_t known;                            ///< `floor` is, and so are low and shift of `search`
  std::uint32_t sums[kFewRows][2][kFewWarps];
  std::uint32_t start[kFewRows];  ///< where this block's keys go in a row's list
  std::uint32_t status;
};
static_assert(sizeof(FewControl) <= FewSizes::kControl);

/// The bin where the sum from the highest one down reaches k, and the sum of all; one warp. Nothing is found where k is
/// not reached. `highest`: the highest bin that holds a key.
__device__ inline std::uint32_t find_bin(const std::uint32_t* histogram, std::uint32_t k, FewFound& found,
                                         std::uint32_t* highest = nullptr) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto scan = [lane](std::uint32_t value) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, value, step);
      if (lane >= step) value += other;
    }
    return value;
  };
  // Lane 0 has the highest bins.
  const std::uint32_t mine = __ldcg(histogram + kFewBins + 31 - lane);
  const std::uint32_t upto = scan(mine), total = __shfl_sync(kAllLanes, upto, 31);
  if (total == 0) return 0;
  const int top = __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine != 0))) - 1;
  const auto pair_of = [&](int group) {
    return __ldcg(reinterpret_cast<const uint2*>(histogram + 64 * (31 - group) + 62 - 2 * lane));
  };
  if (highest != nullptr) {
    const uint2 pair = pair_of(top);
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, (pair.x | pair.y) != 0))) - 1;
    *highest = static_cast<std::uint32_t>(64 * (31 - top) + 62 - 2 * owner) +
               (__shfl_sync(kAllLanes, pair.y, owner) != 0 ? 1U : 0U);
  }
  if (total < k) return total;
  const int group = __ffs(static_cast<int>(__ballot_sync(kAllLanes, upto >= k))) - 1;
  const std::uint32_t over = __shfl_sync(kAllLanes, upto - mine, group);
  const uint2 pair = pair_of(group);
  const std::uint32_t reached = over + scan(pair.x + pair.y);
  const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, reached >= k))) - 1;
  const std::uint32_t low = __shfl_sync(kAllLanes, pair.x, owner), high = __shfl_sync(kAllLanes, pair.y, owner);
  const std::uint32_t before = __shfl_sync(kAllLanes, reached, owner) - low - high;
  found.bin = static_cast<std::uint32_t>(64 * (31 - group) + 62 - 2 * owner);
  found.before = before, found.inside = high;
  if (before + high < k) {
    found.before += high, found.inside = low;
  } else {
    found.bin += 1;
  }
  return total;
}

/// A block's bins (16 bits each) of one row and one level, and how they get to the chip's.
struct FewBins {
  std::uint32_t* words;
  static __device__ void add(std::uint32_t* words, std::uint32_t bin) {
    atomicAdd(&words[bin / 2], 1U << 16 * (bin & 1U));
  }
  /// Warp `warp` of `warps` that share the work.
  template <bool kClear>
  __device__ void share(std::uint32_t* histogram, int warp, int warps) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int group = warp; group < 32; group += warps) {
      const std::uint32_t two = words[32 * group + lane];
      if (kClear) words[32 * group + lane] = 0;
      const std::uint32_t low = two & 0xffffU, high = two >> 16;
      std::uint32_t* const to = histogram + 64 * group + 2 * lane;
      if (low != 0) atomicAdd(to, low);
      if (high != 0) atomicAdd(to + 1, high);
      const std::uint32_t sum = __reduce_add_sync(kAllLanes, low + high);
      if (lane == 0 && sum != 0) atomicAdd(&histogram[kFewBins + group], sum);
    }
  }
};

__device__ inline std::uint32_t* few_histogram(const FewParams& f, int row, int level) {
  return f.histograms + (row * kFewHistograms + level) * kFewHistogram;
}

/// Where a block's parts lie.
struct FewMemory {
  std::uint32_t* scores;  ///< [rows, tiles * 64] bits of scores; kNeverSelected: cannot win
  std::uint32_t* bits;    ///< [rows, words]: keys that reach the bound
  std::uint32_t* bins;    ///< [rows, kFewBins / 2]
  __device__ FewMemory(std::uint8_t* memory, const FewSizes& sizes)
      : scores(reinterpret_cast<std::uint32_t*>(memory + sizes.scores_at())),
        bits(reinterpret_cast<std::uint32_t*>(memory + sizes.bits_at())),
        bins(reinterpret_cast<std::uint32_t*>(memory + sizes.bins_at())) {}
  [[nodiscard]] __device__ std::uint32_t* row_scores(const FewSizes& sizes, int r) const {
    return scores + r * sizes.tiles * kFewTile;
  }
  [[nodiscard]] __device__ std::uint32_t* row_bits(const FewSizes& sizes, int r) const {
    return bits + r * sizes.words();
  }
  [[nodiscard]] __device__ std::uint32_t* row_bins(int r) const { return bins + r * (kFewBins / 2); }
};

/// What happens to a score when it is there. One warp's view; a lane has one row.
struct FewNotes {
  const FewSizes& sizes;
  FewControl& s;
  FewMemory memory;
  int row;                   ///< of this lane
  int early;                 ///< tiles of the block that go into the early histogram
  int checked = 0x7fffffff;  ///< the first tile that was held against the bound
  bool counted = false;      ///< this warp's early tiles are
  float floor;

  __device__ FewNotes(const FewSizes& all_sizes, FewControl& control, const FewMemory& where, int lane_row, int tiles)
      : sizes(all_sizes), s(control), memory(where), row(lane_row), early((tiles + kFewEarlyPart - 1) / kFewEarlyPart) {
    floor = __int_as_float(0x7fffffff);
  }

  /// Before the warp's tile i (of the block, in the order of the walk) is scored.
  __device__ void begin(int i) {
    if (i < early) return;
    if (!counted) counted_early();
    if (checked == 0x7fffffff && __any_sync(kAllLanes, *static_cast<volatile std::uint32_t*>(&s.known) != 0)) learn(i);
  }
  __device__ void counted_early() {
    counted = true;
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.early);
  }
  __device__ void learn(int i) {
    checked = i;
    __syncwarp();
    floor = *static_cast<volatile float*>(&s.floor[row]);
  }
  [[nodiscard]] __device__ bool in_window(int at) const {
    return static_cast<std::uint32_t>(at) >= s.first[row] && static_cast<std::uint32_t>(at) < s.last[row];
  }
  /// Score of key `at` of the block, of tile i.
  __device__ void put(int i, int at, float score) const {
    const std::uint32_t bits = score == score ? __float_as_uint(score) : kNeverSelected;
    memory.row_scores(sizes, row)[at] = bits;
    if (i < early) {
      if (bits != kNeverSelected && in_window(at))
        FewBins::add(memory.row_bins(row), ascending(bits) >> kFewEarlyShift);
    } else if (score >= floor) {  // a NaN as long as the bound is not known
      hold(bits, at);
    }
  }
  /// Against the bound itself.
  __device__ void hold(std::uint32_t bits, int at) const {
    const std::uint32_t key = ascending(bits);
    const FewSearch& search = s.search[row];
    if (key < search.low || !in_window(at)) return;
    FewBins::add(memory.row_bins(row), search.bin(key));
    atomicOr(&memory.row_bits(sizes, row)[at / 32], 1U << (at % 32));
  }
  /// After the warp's last tile: waits for the bound. Tiles before `checked` must be held against it by again().
  __device__ void end() {
    if (!counted) counted_early();
    ptx::mbarrier_wait(&s.bound, 0);
    if (checked == 0x7fffffff) learn(0x7ffffffe);
  }
  /// A lane looks again at a score that it put.
  __device__ void again(int at) const {
    const std::uint32_t bits = memory.row_scores(sizes, row)[at];
    if (__uint_as_float(bits) >= floor) hold(bits, at);
  }
};

/// The warp that clears what the launch needs cleared, and finds the bounds while others score.
struct FewBound {
  const Params& p;
  const FewParams& f;
  FewControl& s;
  FewMemory memory;

  /// First thing of a launch. The barrier's state, for find().
  static __device__ std::uint32_t clear(const Params& p, const FewParams& f) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (blockIdx.x == 0 && f.first_row == 0) {
      static_assert(sizeof(DeviceCounters) % 8 == 0);
      auto* const counters = reinterpret_cast<std::uint64_t*>(p.counters);
      for (int i = lane; i < static_cast<int>(sizeof(DeviceCounters) / 8); i += 32) counters[i] = 0;
      __threadfence();
      __syncwarp();
    }
    // What other blocks' rows said about themselves may be cleared by now; block 0's say it again.
    if (blockIdx.x == 0 && lane < f.sizes.rows) device_row(p, f.first_row + lane);
    const int all = static_cast<int>(sizeof(FewProgress) / 16) + f.sizes.rows * kFewHistograms * kFewHistogram / 4;
    auto* const words = reinterpret_cast<uint4*>(f.progress);
    for (int i = static_cast<int>(blockIdx.x) * 32 + lane; i < all; i += static_cast<int>(gridDim.x) * 32)
      words[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    return lane == 0 ? ptx::launch_arrive(ptx::launch_barrier()) : 0;
  }

  __device__ void find(std::uint32_t cleared) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::mbarrier_wait(&s.early, 0);
    if (lane == 0) ptx::launch_wait(ptx::launch_barrier(), cleared);
    __syncwarp();
    for (int r = 0; r < f.sizes.rows; ++r)
      if (s.rows[r].competes()) FewBins{memory.row_bins(r)}.template share<true>(few_histogram(f, r, 0), 0, 1);
    __syncwarp();
    if (lane == 0) {
      ptx::release_add(&f.progress->early, 1);
      while (ptx::load_acquire(&f.progress->early) < gridDim.x) ptx::pause();
    }
    __syncwarp();
    for (int r = 0; r < f.sizes.rows; ++r) {
      if (!s.rows[r].competes()) continue;
      FewFound found{0, 0, 0};
      std::uint32_t highest = kFewBins - 1;
      const std::uint32_t k = s.search[r].k, total = find_bin(few_histogram(f, r, 0), k, found, &highest);
      // Key 0 is never selected.
      const std::uint32_t low = total >= k ? max(found.bin << kFewEarlyShift, 1U) : 1U;
      const std::uint32_t best = (highest << kFewEarlyShift) + ((1U << kFewEarlyShift) - 1);
      if (lane == 0) {
        s.search[r].low = low;
        s.search[r].shift = few_shift(low, best);
        s.floor[r] = low >= 0x80000000U ? __uint_as_float(low ^ 0x80000000U) : __int_as_float(0xff800000);
      }
    }
    __threadfence_block();
    __syncwarp();
    if (lane == 0) {
      *static_cast<volatile std::uint32_t*>(&s.known) = 1;
      ptx::mbarrier_arrive(&s.bound);
    }
  }
};

/// One block's consumers, after the last tile is scored.
struct FewSelection {
  const Params& p;
  const FewParams& f;
  FewControl& s;
  FewMemory memory;
  std::uint8_t* room;  ///< where queries and ring were
  int thread, lane, warp;
  std::uint32_t barriers = 0;  ///< of the grid, times its blocks
  int turn = 0;
  // The team of this warp, and its row.
  int team_warps, r, team_thread;
  bool mine;  ///< the row is one, and competes

  __device__ FewSelection(const Params& params, const FewParams& few, FewControl& control, const FewMemory& where,
                          std::uint8_t* free_room)
      : p(params),
        f(few),
        s(control),
        memory(where),
        room(free_room),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32),
        team_warps(kFewWarps / few.sizes.slots),
        r(warp / team_warps),
        team_thread(thread - r * team_warps * 32),
        mine(r < few.sizes.rows && control.rows[r < few.sizes.rows ? r : 0].competes()) {}

  static __device__ void everyone() { ptx::named_barrier<1, kFewConsumers>(); }
  __device__ void team() const { ptx::named_barrier(2 + r, 32 * team_warps); }
  [[nodiscard]] __device__ int team_threads() const { return 32 * team_warps; }
  [[nodiscard]] __device__ std::uint32_t* above() const {
    return reinterpret_cast<std::uint32_t*>(room + r * f.sizes.row_bytes() + kFewListed * 8);
  }
  [[nodiscard]] __device__ std::uint32_t* inside() const { return above() + f.sizes.words(); }

  /// Everything that any block wrote before is there for every block. One block an SM and a cooperative launch: all of
  /// them run.
  __device__ void whole_grid() {
    everyone();
    barriers += gridDim.x;
    if (thread == 0) {
      ptx::release_add(&f.progress->arrived, 1);
      while (ptx::load_acquire(&f.progress->arrived) < barriers) {
      }
    }
    everyone();
  }

  /// Sum of the values of the team's threads before this one, and of all. Two rounds of sums, so that one barrier is
  /// enough.
  __device__ std::uint32_t scan(std::uint32_t value, std::uint32_t& total) {
    std::uint32_t running = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, running, step);
      if (lane >= step) running += other;
    }
    std::uint32_t* const sums = s.sums[r][turn];
    turn ^= 1;
    const int team_warp = team_thread / 32;
    if (lane == 31) sums[team_warp] = running;
    team();
    const std::uint32_t sum = lane < team_warps ? sums[lane] : 0;
    total = __reduce_add_sync(kAllLanes, sum);
    return __reduce_add_sync(kAllLanes, lane < team_warp ? sum : 0) + running - value;
  }

  /// Calls visit(bit) for the bits of a word. Each lane begins at another one: full words would else meet in one bank.
  template <class Visit>
  __device__ void each(std::uint32_t word, Visit&& visit) const {
    for (std::uint32_t turned = __funnelshift_r(word, word, static_cast<std::uint32_t>(lane)); turned != 0;
         turned &= turned - 1)
      visit((__ffs(static_cast<int>(turned)) - 1 + lane) & 31);
  }

  /// Every block's bins are there for all: to the bin of the K-th key. Level 0 divides all that reach the bound.
  __device__ void descend(int level) {
    if (!mine || team_thread >= 32) return;
    FewSearch search = s.search[r];
    if (level > 0 && !search.searching()) return;
    FewFound found{0, 0, 0};
    const std::uint32_t total = find_bin(few_histogram(f, r, level + 1), search.k, found);
    if (total < search.k) {  // fewer keys that can be selected than slots: the bound is the lowest key
      search.all = true, search.count = search.inside = total;
    } else {
      if (level == 0) search.count = search.k;
      narrow(search, found);
    }
    if (lane == 0) s.search[r] = search;
  }

  /// The bin is too full for a list: its keys into bins of its own.
  __device__ void divide(int level) {
    if (!mine || !s.search[r].searching()) return;
    const FewSearch search = s.search[r];
    std::uint32_t* const bins = memory.row_bins(r);
    for (int i = team_thread; i < kFewBins / 2; i += team_threads()) bins[i] = 0;
    team();
    const std::uint32_t* const scores = memory.row_scores(f.sizes, r);
    const std::uint32_t* const bits = memory.row_bits(f.sizes, r);
    for (int w = team_thread; w < f.sizes.words(); w += team_threads())
      each(bits[w], [&](int bit) {
        const std::uint32_t key = ascending(scores[32 * w + bit]);
        if (key >= search.low && key <= search.last) FewBins::add(bins, search.bin(key));
      });
    team();
    FewBins{bins}.template share<false>(few_histogram(f, r, level + 1), team_thread / 32, team_warps);
  }

  /// Marks what wins and what may, and tells the other blocks.
  __device__ void publish() {
    const FewSearch search = s.search[r];
    const std::uint32_t* const scores = memory.row_scores(f.sizes, r);
    const std::uint32_t* const bits = memory.row_bits(f.sizes, r);
    FewCounts sum{0, 0};
    const int words = f.sizes.words();
    for (int begin = 0; begin < words; begin += team_threads()) {
      const int w = begin + team_thread;
      std::uint32_t over = 0, in = 0, total;
      if (w < words) {
        each(bits[w], [&](int bit) {
          const std::uint32_t key = ascending(scores[32 * w + bit]);
          if (key > search.last || (search.all && key >= search.low)) {
            over |= 1U << bit;
          } else if (key >= search.low) {
            in |= 1U << bit;
          }
        });
        above()[w] = over, inside()[w] = in;
      }
      const std::uint32_t before =
          scan(static_cast<std::uint32_t>(__popc(over)) | static_cast<std::uint32_t>(__popc(in)) << 16, total);
      sum.above += total & 0xffffU, sum.candidates += total >> 16;
      if (!search.listed() || total >> 16 == 0) continue;
      if (team_thread == 0) s.start[r] = atomicAdd(&f.progress->listed[r], total >> 16);
      team();
      FewListedKey* to = f.lists + r * kFewListed + s.start[r] + (before >> 16);
      each(in, [&](int bit) { *to++ = {ascending(scores[32 * w + bit]), blockIdx.x}; });
      team();  // the next round takes s.start
    }
    if (team_thread == 0) {
      f.counts[r * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)] = sum;
      count(&p.counters->candidates, sum.above + sum.candidates);
    }
  }
  static_assert(kFewConsumers * 32 <= 0xffff, "two counts in one scan");

  /// Settles the row's K-th key and calls put(place, key, score) for the winners of this block, places in index order.
  template <class Put>
  __device__ void settle(Put&& put) {
    const FewSearch search = s.search[r];
    const bool listed = search.listed();
    const int size = listed ? static_cast<int>(search.inside) : 0;
    const auto* const from = reinterpret_cast<const uint2*>(f.lists + r * kFewListed);
    const auto* const list = reinterpret_cast<const uint2*>(room + r * f.sizes.row_bytes());
    // Every warp finds the same for itself: a short list costs no barrier.
    std::uint32_t over = 0, ties = 0;
    for (int i = lane; i < static_cast<int>(blockIdx.x); i += 32) {
      const uint2 other = __ldcg(reinterpret_cast<const uint2*>(f.counts) + r * static_cast<int>(gridDim.x) + i);
      over += other.x;
      if (!listed) ties += other.y;
    }
    const bool is_short = size <= 32;
    const uint2 own = is_short && lane < size ? __ldcg(from + lane) : make_uint2(0, kFewMaxGrid);
    if (!is_short) {
      auto* const to = reinterpret_cast<uint2*>(room + r * f.sizes.row_bytes());
      for (int i = team_thread; i < size; i += team_threads()) to[i] = __ldcg(from + i);
      team();
    }
    const auto sum_of = [&](auto&& value) {
      std::uint32_t sum = 0;
      if (is_short) {
        if (lane < size) sum = value(own);
      } else {
        for (int i = lane; i < size; i += 32) sum += value(list[i]);
      }
      return __reduce_add_sync(kAllLanes, sum);
    };
    // The largest key that k listed ones reach. Where nothing is listed, low = last or everything from low on wins.
    std::uint32_t kth = search.low, wanted = search.all ? 0 : search.k;
    if (listed) {
      for (std::uint32_t last = search.last; kth != last;) {
        const std::uint32_t middle = kth + (last - kth) / 2 + (last - kth) % 2;
        if (sum_of([&](uint2 entry) { return entry.x >= middle ? 1U : 0U; }) >= search.k) {
          kth = middle;
        } else {
          last = middle - 1;
        }
      }
      wanted -= sum_of([&](uint2 entry) { return entry.x > kth ? 1U : 0U; });
    }
    over = __reduce_add_sync(kAllLanes, over), ties = __reduce_add_sync(kAllLanes, ties);
    if (listed) {
      over += sum_of([&](uint2 entry) { return entry.x > kth && entry.y < blockIdx.x ? 1U : 0U; });
      ties += sum_of([&](uint2 entry) { return entry.x == kth && entry.y < blockIdx.x ? 1U : 0U; });
    }

    const std::uint32_t* const scores = memory.row_scores(f.sizes, r);
    const int words = f.sizes.words();
    for (int begin = 0; begin < words; begin += team_threads()) {
      const int w = begin + team_thread;
      std::uint32_t wins = w < words ? above()[w] : 0, equal = w < words ? inside()[w] : 0;
      if (listed) {
        std::uint32_t still = 0;
        each(equal, [&](int bit) {
          const std::uint32_t key = ascending(scores[32 * w + bit]);
          if (key > kth) wins |= 1U << bit;
          if (key == kth) still |= 1U << bit;
        });
        equal = still;
      }
      std::uint32_t total;
      const std::uint32_t before =
          scan(static_cast<std::uint32_t>(__popc(wins)) | static_cast<std::uint32_t>(__popc(equal)) << 16, total);
      const std::uint32_t my_over = over + (before & 0xffffU), my_ties = ties + (before >> 16);
      each(my_ties < wanted ? wins | equal : wins, [&](int bit) {
        const std::uint32_t below = (1U << bit) - 1;
        const std::uint32_t rank = my_ties + static_cast<std::uint32_t>(__popc(equal & below));
        if ((equal >> bit & 1U) != 0 && rank >= wanted) return;
        put(static_cast<std::int32_t>(my_over + static_cast<std::uint32_t>(__popc(wins & below)) + min(rank, wanted)),
            s.walk.first_key + 32 * w + bit, __uint_as_float(scores[32 * w + bit]));
      });
      over += total & 0xffffU, ties += total >> 16;
    }
  }

  /// Winners, which stand in index order, take the place that so many others precede in the total order. A warp a
  /// winner, over the whole chip: K * K comparisons are few for it.
  __device__ void write_by_score(int row, const RowWriter& writer) const {
    auto* const winners = reinterpret_cast<unsigned long long*>(room);
    const auto count = static_cast<std::int32_t>(s.search[row].count);
    const auto* const from =
        reinterpret_cast<const unsigned long long*>(f.winners + static_cast<std::int64_t>(row) * p.top_k);
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

  /// `counter`: of tiles loaded.
  __device__ void run(std::uint64_t* counter) {
    bool any = false;
    for (int i = 0; i < f.sizes.rows; ++i) any |= s.rows[i].competes();
    if (any) {
      everyone();  // every warp's keys are in the bins
      if (mine) FewBins{memory.row_bins(r)}.template share<false>(few_histogram(f, r, 1), team_thread / 32, team_warps);
      whole_grid();
      if (thread == 0) {  // after the counters are cleared
        count(counter, static_cast<std::uint64_t>(s.walk.tiles));
        if (s.status != 0)
          atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status),
                   static_cast<unsigned long long>(s.status));
      }
      for (int level = 0;; ++level) {
        descend(level);
        everyone();
        bool searching = false;
        for (int i = 0; i < f.sizes.rows; ++i) searching |= s.rows[i].competes() && s.search[i].searching();
        if (!searching) break;
        divide(level + 1);
        whole_grid();
      }
      if (mine) publish();
      whole_grid();
      if (mine) {
        const RowWriter writer(p, f.first_row + r, s.rows[r]);
        settle([&](std::int32_t place, std::int32_t key, float score) {
          if (writer.by_index()) {
            writer.put(writer.base() + place, key, score);
          } else {
            f.winners[static_cast<std::int64_t>(r) * p.top_k + place] = {score, key};
          }
        });
      }
    }
    for (int i = 0; i < f.sizes.rows && f.first_row + i < p.rows; ++i) {
      if (static_cast<int>(blockIdx.x) == i % static_cast<int>(gridDim.x))
        RowWriter(p, f.first_row + i, s.rows[i])
            .put_rest(Team<kFewWarps>(warp, reinterpret_cast<std::uint32_t*>(room)),
                      static_cast<std::int32_t>(s.search[i].count));
    }
    if (!any || p.order == Order::index) return;
    whole_grid();
    for (int i = 0; i < f.sizes.rows; ++i)
      if (s.rows[i].competes()) write_by_score(i, RowWriter(p, f.first_row + i, s.rows[i]));
  }
};

}  // namespace dosa::cuda
