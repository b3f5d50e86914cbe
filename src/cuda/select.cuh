// Exact selection from candidate buffers by a warp or a block: radix search over the total order, order-preserving
// compaction, output. Nothing here assumes a capacity or drops an entry.
#pragma once

#include <cub/warp/warp_scan.cuh>

#include "cuda/rows.cuh"

namespace dosa::cuda {

constexpr int kBins = 256;

/// What the lanes below hold together; `all`: what the whole warp holds.
__device__ inline std::uint32_t sum_of_lanes_below(std::uint32_t value, std::uint32_t* all = nullptr) {
  using Scan = cub::WarpScan<std::uint32_t>;
  typename Scan::TempStorage none;  // 32 lanes exchange by shuffles
  std::uint32_t below, sum;
  Scan(none).ExclusiveSum(value, below, sum);
  if (all != nullptr) *all = sum;
  return below;
}

/// Ascending value = the total order's first entry first; -0 and +0 become equal.
__device__ inline std::uint64_t order_key(const Entry& entry) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(entry.score, 0.0F));
  const std::uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(~ascending) << 32) | static_cast<std::uint32_t>(entry.index);
}
__device__ inline float score_of(std::uint64_t key) {
  const std::uint32_t ascending = ~static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float((ascending >> 31) != 0 ? ascending & 0x7fffffffU : ~ascending);
}

/// Entries in pieces, in ascending order of pieces.
struct Pieces {
  const Entry* entries;
  std::int64_t stride;  ///< from piece to piece
  const std::uint32_t* counts;
  int pieces;
  int split;  ///< slices a piece, so that every warp finds work
  [[nodiscard]] __device__ int slices() const { return pieces * split; }
  __device__ void slice(int v, const Entry*& from, std::uint32_t& count) const {
    const std::uint32_t all = counts[v / split], step = static_cast<std::uint32_t>(v % split);
    const std::uint32_t begin = all * step / static_cast<std::uint32_t>(split);
    from = entries + (v / split) * stride + begin;
    count = all * (step + 1) / static_cast<std::uint32_t>(split) - begin;
  }
};

/// kWarps warps that select together. `memory`: shared, kWords 32-bit words for each team, at a multiple of 16 bytes.
template <int kWarps>
struct Team {
  static constexpr int kWords = kBins + 4 * kWarps + 8;
  static_assert(kWords % 4 == 0, "teams lie one behind the other");
  int warp, lane;
  std::uint32_t* histogram;
  std::uint64_t* reduction;  ///< 2 * kWarps + 2

  __device__ Team(int warp_in_team, std::uint32_t* memory)
      : warp(warp_in_team),
        lane(static_cast<int>(threadIdx.x % 32)),
        histogram(memory),
        reduction(reinterpret_cast<std::uint64_t*>(memory + kBins)) {}
  __device__ void sync() const {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  [[nodiscard]] __device__ int thread() const { return warp * 32 + lane; }
  static constexpr int kThreads = 32 * kWarps;

  /// Calls visit(entry, valid) with all lanes of a warp for every entry of the slices this warp owns.
  template <class Visit>
  __device__ void each(const Entry* from, std::uint32_t count, Visit&& visit) const {
    constexpr int kBatch = 8;  // loads in flight
    for (std::uint32_t begin = 0; begin < count; begin += 32 * kBatch) {
      Entry batch[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const std::uint32_t at = begin + static_cast<std::uint32_t>(32 * u + lane);
        if (at < count) batch[u] = from[at];
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) visit(batch[u], begin + static_cast<std::uint32_t>(32 * u + lane) < count);
    }
  }
  template <class Visit>
  __device__ void each(const Pieces& pieces, Visit&& visit) const {
    for (int v = warp; v < pieces.slices(); v += kWarps) {
      const Entry* from;
      std::uint32_t count;
      pieces.slice(v, from, count);
      each(from, count, visit);
    }
  }

  static __device__ void extremes_of_warp(std::uint64_t& low, std::uint64_t& high) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const unsigned long long other_low = __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(low), step);
      const unsigned long long other_high = __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(high), step);
      if (other_low < low) low = other_low;
      if (other_high > high) high = other_high;
    }
  }
  /// Smallest and largest of every thread's pair.
  __device__ void extremes(std::uint64_t& low, std::uint64_t& high) const {
    extremes_of_warp(low, high);
    if constexpr (kWarps > 1) {
      sync();
      if (lane == 0) reduction[2 * warp] = low, reduction[2 * warp + 1] = high;
      sync();
      static_assert(32 % kWarps == 0, "every warp's pair is read by as many lanes");
      low = reduction[2 * (lane % kWarps)], high = reduction[2 * (lane % kWarps) + 1];
      extremes_of_warp(low, high);
    }
  }

  /// The bin where a running sum of the histogram reaches k (1..all), and what the bins before it hold. Every warp
  /// works it out for itself.
  __device__ void find_bin(std::uint32_t k, std::uint32_t& bin, std::uint32_t& before, std::uint32_t& inside) const {
    constexpr int kEach = kBins / 32;
    static_assert(kEach == 8, "two 16-byte loads");
    const uint4* const quads = reinterpret_cast<const uint4*>(histogram) + 2 * lane;
    const uint4 first = quads[0], second = quads[1];
    const std::uint32_t own[kEach] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    std::uint32_t sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += own[j];
    std::uint32_t running = sum_of_lanes_below(sum);
    std::uint32_t my_bin = 0, my_before = 0, my_inside = 0;
    bool found = false;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (running < k && k <= running + own[j]) {
        my_bin = static_cast<std::uint32_t>(lane * kEach + j), my_before = running, my_inside = own[j], found = true;
      }
      running += own[j];
    }
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, found))) - 1;
    bin = __shfl_sync(kAllLanes, my_bin, owner);
    before = __shfl_sync(kAllLanes, my_before, owner);
    inside = __shfl_sync(kAllLanes, my_inside, owner);
  }

  /// A bound that exactly k keys (0 < k < all) do not exceed. Keys are distinct: each index occurs once.
  __device__ std::uint64_t bound(const Pieces& pieces, std::uint32_t k) const {
    std::uint64_t low = ~std::uint64_t{0}, high = 0;
    each(pieces, [&](const Entry& entry, bool valid) {
      if (!valid) return;
      const std::uint64_t key = order_key(entry);
      low = min(low, key), high = max(high, key);
    });
    extremes(low, high);
    // Keys agree above bit `top`; each round settles 8 more bits below it.
    int top = 64 - __clzll(static_cast<long long>(low ^ high));
    std::uint64_t prefix = top == 64 ? 0 : (high >> top) << top;
    while (true) {
      const int bottom = max(top - 8, 0);
      sync();
      for (int i = thread(); i < kBins; i += kThreads) histogram[i] = 0;
      sync();
      each(pieces, [&](const Entry& entry, bool valid) {
        if (!valid) return;
        const std::uint64_t key = order_key(entry);
        if (top == 64 || ((key ^ prefix) >> top) == 0)
          atomicAdd(&histogram[static_cast<std::uint32_t>(key >> bottom) & (kBins - 1) & ((1U << (top - bottom)) - 1)],
                    1U);
      });
      sync();
      std::uint32_t bin, before, inside;
      find_bin(k, bin, before, inside);
      k -= before;
      prefix |= static_cast<std::uint64_t>(bin) << bottom;
      if (inside == k || bottom == 0) return prefix | ((std::uint64_t{1} << bottom) - 1);
      top = bottom;
    }
  }

  /// The largest key that does not exceed `limit` (some key does not).
  __device__ std::uint64_t largest(const Pieces& pieces, std::uint64_t limit) const {
    std::uint64_t low = 0, high = 0;
    each(pieces, [&](const Entry& entry, bool valid) {
      if (!valid) return;
      const std::uint64_t key = order_key(entry);
      if (key <= limit) high = max(high, key);
    });
    extremes(low, high);
    return high;
  }
};

/// One warp, one piece: keeps the entries that do not exceed `limit`, in place, in their order. Returns the largest
/// kept key.
__device__ inline std::uint64_t compact(const Team<1>& team, Entry* entries, std::uint32_t count, std::uint64_t limit) {
  std::uint32_t kept = 0;
  std::uint64_t largest = 0;
  // Positions written never pass those read: a batch is read by all lanes before its first vote.
  team.each(entries, count, [&](const Entry& entry, bool valid) {
    const std::uint64_t key = valid ? order_key(entry) : ~std::uint64_t{0};
    const bool keep = valid && key <= limit;
    const std::uint32_t votes = __ballot_sync(kAllLanes, keep);
    if (keep) {
      entries[kept + static_cast<std::uint32_t>(__popc(votes & ((1U << team.lane) - 1)))] = entry;
      largest = max(largest, key);
    }
    kept += static_cast<std::uint32_t>(__popc(votes));
  });
  std::uint64_t low = 0;
  team.extremes(low, largest);
  __syncwarp();
  return largest;
}

/// Stable sort by the total order, one warp, 8 bits a pass; `spare` holds as many entries. Returns where the result
/// lies.
__device__ inline Entry* sort_by_score(const Team<1>& team, Entry* entries, Entry* spare, std::uint32_t count) {
  std::uint64_t differing = 0;
  const std::uint64_t some = count > 0 ? order_key(entries[0]) : 0;
  team.each(entries, count, [&](const Entry& entry, bool valid) {
    if (valid) differing |= order_key(entry) ^ some;
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    differing |= __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(differing), step);
  for (int shift = 0; shift < 64; shift += 8) {
    if (((differing >> shift) & 0xffU) == 0) continue;
    for (int i = team.lane; i < kBins; i += 32) team.histogram[i] = 0;
    __syncwarp();
    team.each(entries, count, [&](const Entry& entry, bool valid) {
      if (valid) atomicAdd(&team.histogram[static_cast<std::uint32_t>(order_key(entry) >> shift) & 0xffU], 1U);
    });
    __syncwarp();
    constexpr int kEach = kBins / 32;
    std::uint32_t own[kEach], sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += own[j] = team.histogram[team.lane * kEach + j];
    std::uint32_t running = sum_of_lanes_below(sum);
#pragma unroll
    for (int j = 0; j < kEach; ++j) team.histogram[team.lane * kEach + j] = running, running += own[j];
    __syncwarp();
    team.each(entries, count, [&](const Entry& entry, bool valid) {
      const std::uint32_t digit =
          valid ? static_cast<std::uint32_t>(order_key(entry) >> shift) & 0xffU : static_cast<std::uint32_t>(kBins);
      const std::uint32_t peers = __match_any_sync(kAllLanes, digit);
      const std::uint32_t rank = static_cast<std::uint32_t>(__popc(peers & ((1U << team.lane) - 1)));
      std::uint32_t place = 0;
      if (valid) place = team.histogram[digit] + rank;
      __syncwarp();
      if (valid) {
        if (rank == 0) team.histogram[digit] += static_cast<std::uint32_t>(__popc(peers));
        spare[place] = entry;
      }
      __syncwarp();
    });
    __syncwarp();
    Entry* const swap = entries;
    entries = spare;
    spare = swap;
  }
  return entries;
}

/// Entries of one aligned stretch of this many keys may stand in any order in a buffer; stretches stand in order.
constexpr std::uint32_t kStretch = 256;

/// Calls put(place, entry) for entries[begin, end), which lie in one span of 32 * words keys, with their places in
/// index order. One warp; `bits`: 2 * words of shared memory (a bit a key, then the bits before each word). `words`: a
/// power of two, at least 32.
template <std::uint32_t words, class Put>
__device__ void place_span(std::uint32_t* bits, const Entry* entries, std::int32_t begin, std::int32_t end, Put&& put) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  constexpr std::uint32_t mask = 32 * words - 1;
  constexpr int kQuads = words / 4;  // 16 bytes a lane: no two lanes of a pass meet in a bank
  uint4* const quads = reinterpret_cast<uint4*>(bits);
#pragma unroll
  for (int j = lane; j < kQuads; j += 32) quads[j] = make_uint4(0, 0, 0, 0);
  __syncwarp();
  for (std::int32_t i = begin + lane; i < end; i += 32) {
    const std::uint32_t at = static_cast<std::uint32_t>(entries[i].index) & mask;
    atomicOr(&bits[at / 32], 1U << (at % 32));
  }
  __syncwarp();
  std::uint32_t before = 0;
#pragma unroll
  for (int base = 0; base < kQuads; base += 32) {
    const bool mine = base + lane < kQuads;
    const uint4 four = mine ? quads[base + lane] : make_uint4(0, 0, 0, 0);
    const auto x = static_cast<std::uint32_t>(__popc(four.x)), y = x + static_cast<std::uint32_t>(__popc(four.y)),
               z = y + static_cast<std::uint32_t>(__popc(four.z)), sum = z + static_cast<std::uint32_t>(__popc(four.w));
    std::uint32_t all;
    const std::uint32_t first = before + sum_of_lanes_below(sum, &all);
    if (mine) quads[kQuads + base + lane] = make_uint4(first, first + x, first + y, first + z);
    before += all;
  }
  __syncwarp();
  for (std::int32_t i = begin + lane; i < end; i += 32) {
    const Entry entry = entries[i];
    const std::uint32_t at = static_cast<std::uint32_t>(entry.index) & mask;
    const std::uint32_t lower =
        bits[words + at / 32] + static_cast<std::uint32_t>(__popc(bits[at / 32] & ((1U << (at % 32)) - 1)));
    put(begin + static_cast<std::int32_t>(lower), entry);
  }
  __syncwarp();
}

/// Where and how a row's slots are written: index base, scores, forced keys, the fill.
struct RowWriter {
  const Params& p;
  const DeviceRow& row;
  std::int32_t t;
  std::int32_t heads, tails;  ///< forced keys that are written

  __device__ RowWriter(const Params& params, std::int32_t row_of_call, const DeviceRow& device_row)
      : p(params), row(device_row), t(row_of_call) {
    heads = count_forced(p, row.request, row.head_first, row.first, p.top_k);
    tails = count_forced(p, row.request, row.last, row.tail_last, p.top_k - heads);
  }
  [[nodiscard]] __device__ bool by_index() const { return p.order == Order::index; }
  /// First slot of keys that competed.
  [[nodiscard]] __device__ std::int32_t base() const { return by_index() ? heads : heads + tails; }
  __device__ void put(std::int32_t slot, std::int32_t key, float score) const {
    const PagedKeys* const paged = p.is_paged ? &p.paged : nullptr;
    p.indices[t * p.indices_row + slot * p.indices_slot] =
        static_cast<std::int32_t>(written_index(paged, p.base, row.request, p.first_key, row.window_first, key));
    if (p.scores != nullptr) p.scores[t * p.scores_row + slot * p.scores_slot] = score;
  }
  /// Forced keys, the length, and the fill; `count` keys that competed are written by others.
  template <int kWarps>
  __device__ void put_rest(const Team<kWarps>& team, std::int32_t count) const {
    const float infinity = __int_as_float(0x7f800000);
    const auto put_forced = [&](std::int32_t slot, std::int32_t first, std::int32_t last, std::int32_t wanted) {
      if (team.warp != 0) return;
      if (!p.is_paged) {
        for (std::int32_t i = team.lane; i < wanted; i += 32) put(slot + i, first + i, infinity);
        return;
      }
      const KeySource keys = keys_of_request(p, row.request);
      std::int32_t done = 0;
      for (std::int32_t begin = first; begin < last && done < wanted; begin += 32) {
        const std::int32_t key = begin + team.lane;
        const bool there = key < last && keys.locate(key).codes != nullptr;
        const std::uint32_t votes = __ballot_sync(kAllLanes, there);
        const std::int32_t at = done + __popc(votes & ((1U << team.lane) - 1));
        if (there && at < wanted) put(slot + at, key, infinity);
        done += __popc(votes);
      }
    };
    put_forced(0, row.head_first, row.first, heads);
    put_forced(by_index() ? heads + count : heads, row.last, row.tail_last, tails);
    const std::int32_t length = heads + tails + count;
    if (team.thread() == 0) p.lengths[t * p.lengths_stride] = length;
    for (std::int32_t slot = length + team.thread(); slot < p.top_k; slot += Team<kWarps>::kThreads) {
      p.indices[t * p.indices_row + slot * p.indices_slot] = -1;
      if (p.scores != nullptr) p.scores[t * p.scores_row + slot * p.scores_slot] = -infinity;
    }
  }
};

/// Writes row t: forced keys and the `count` selected entries in the order and base asked for, then the fill. `entries`
/// stand in stretch order (index order) or sorted (score order). `bits`: 2 * words of shared memory for each warp.
template <std::uint32_t words, int kWarps>
__device__ void write_row(const Team<kWarps>& team, const Params& p, std::int32_t t, const DeviceRow& row,
                          const Entry* entries, std::int32_t count, std::uint32_t* bits) {
  const RowWriter writer(p, t, row);
  const std::int32_t base = writer.base();
  const auto put_entry = [&](std::int32_t place, const Entry& entry) {
    writer.put(base + place, entry.index, entry.score);
  };
  if (!writer.by_index()) {
    for (std::int32_t i = team.thread(); i < count; i += Team<kWarps>::kThreads) put_entry(i, entries[i]);
  } else {
    std::uint32_t* const mine = bits + static_cast<std::uint32_t>(team.warp) * 2 * words;
    constexpr std::uint32_t span_keys = 32 * words;
    const auto span_of = [&](std::int32_t i) { return static_cast<std::uint32_t>(entries[i].index) / span_keys; };
    // A warp's share of the entries, moved up to where a span begins.
    const auto span_start = [&](std::int32_t i) {
      while (i > 0 && i < count) {
        const std::int32_t j = i + team.lane;
        const std::uint32_t votes = __ballot_sync(kAllLanes, j >= count || span_of(j) != span_of(j - 1));
        if (votes != 0) return min(i + __ffs(static_cast<int>(votes)) - 1, count);
        i += 32;
      }
      return i;
    };
    const std::int32_t mine_end = kWarps == 1 ? count : span_start(count * (team.warp + 1) / kWarps);
    for (std::int32_t begin = kWarps == 1 ? 0 : span_start(count * team.warp / kWarps); begin < mine_end;) {
      const std::uint32_t span = span_of(begin);
      std::int32_t end = begin;
      while (true) {
        const std::int32_t i = end + team.lane;
        const std::uint32_t votes = __ballot_sync(kAllLanes, i < count && span_of(i) == span);
        end += __popc(votes);
        if (votes != kAllLanes) break;
      }
      place_span<words>(mine, entries, begin, end, put_entry);
      begin = end;
    }
  }
  writer.put_rest(team, count);
}

/// The smallest F32 number above `x` (x below +inf).
__device__ inline float next_above(float x) {
  if (x == 0) return __int_as_float(1);
  const std::int32_t bits = __float_as_int(x);
  return __int_as_float(bits + (bits > 0 ? 1 : -1));
}

__device__ inline void count(std::uint64_t* counter, std::uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(value));
}

}  // namespace dosa::cuda
