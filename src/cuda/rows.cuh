// A row's window, forced keys and request, resolved on the device by the contract's own rules.
#pragma once

#include "contract/key_source.hpp"
#include "contract/window.hpp"
#include "contract/written_index.hpp"
#include "cuda/params.hpp"

namespace dosa::cuda {

constexpr unsigned kAllLanes = 0xffffffffU;
constexpr std::uint64_t kStatusRowRequest = 1, kStatusPage = 2;

/// Local key indices; what contract/row.hpp is for the host.
struct DeviceRow {
  std::int64_t window_first = 0;
  std::int32_t head_first = 0, first = 0, last = 0, tail_last = 0;  ///< head, competing keys, tail
  std::int32_t request = 0;
  std::int32_t free_slots = 0;  ///< slots that competing keys may take
  [[nodiscard]] __device__ bool competes() const { return free_slots > 0; }
};

__device__ inline KeySource keys_of_request(const Params& p, std::int32_t request) {
  return p.is_paged ? KeySource(p.paged, request) : KeySource(p.contiguous);
}

/// Forced keys of first..last whose page exists, at most `limit` of them.
__device__ inline std::int32_t count_forced(const Params& p, std::int32_t request, std::int32_t first,
                                            std::int32_t last, std::int32_t limit) {
  if (!p.is_paged) return min(last - first, limit);
  const KeySource keys = keys_of_request(p, request);
  std::int32_t count = 0;
  for (std::int32_t key = first; key < last && count < limit;) {
    const std::int32_t page_end = min((key / p.paged.page_size + 1) * p.paged.page_size, last);
    if (keys.locate(key).codes != nullptr) {
      count += page_end - key;
    } else {
      atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status), kStatusPage);
    }
    key = page_end;
  }
  return min(count, limit);
}

__device__ inline DeviceRow device_row(const Params& p, std::int32_t t) {
  DeviceRow row;
  if (t >= p.rows) return row;
  if (p.is_paged) {
    row.request = p.row_request != nullptr ? p.row_request[t * p.row_request_stride] : t / p.rows_per_request;
    if (row.request < 0 || row.request >= p.requests) {
      atomicOr(reinterpret_cast<unsigned long long*>(&p.counters->status), kStatusRowRequest);
      row.request = 0;
      return row;
    }
  }
  const Window window = window_of(p.ks[t * p.ks_stride], p.ke[t * p.ke_stride], p.total_keys);
  const Forced forced = forced_of(window, p.always_first, p.always_last);
  const auto local = [&](std::int64_t i) {
    const Window part = clip({i, i}, p.first_key, p.keys);
    return static_cast<std::int32_t>(part.first - p.first_key);
  };
  row.window_first = window.first;
  row.head_first = local(window.first);
  row.first = local(forced.head_last);
  row.last = local(forced.tail_first);
  row.tail_last = local(window.last);
  std::int32_t slots = p.top_k;
  slots -= count_forced(p, row.request, row.head_first, row.first, slots);
  slots -= count_forced(p, row.request, row.last, row.tail_last, slots);
  row.free_slots = min(slots, row.last - row.first);
  return row;
}

/// Rows of one block that share a request, and the union of their windows: what one walk over the keys serves.
struct Part {
  std::uint32_t rows = 0;  ///< bit r: row r of the block
  std::int32_t request = 0;
  std::int32_t first = 0, last = 0;
};

/// The next part of the rows still in `waiting`; lane r holds row r of the block. The whole warp calls it.
__device__ inline Part next_part(std::uint32_t waiting, const DeviceRow& row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Part part;
  part.request = __shfl_sync(kAllLanes, row.request, __ffs(static_cast<int>(waiting)) - 1);
  const bool mine = ((waiting >> lane) & 1U) != 0 && row.request == part.request;
  part.rows = __ballot_sync(kAllLanes, mine);
  part.first = __reduce_min_sync(kAllLanes, mine ? row.first : 0x7fffffff);
  part.last = __reduce_max_sync(kAllLanes, mine ? row.last : 0);
  return part;
}

/// How many of a part's keys are scored to predict a threshold: one in 64, where that leaves enough to learn from and
/// enough to save. 0: no prediction, the threshold starts at -inf.
__device__ inline std::int32_t sample_size(const Params& p, const Part& part, std::int32_t stage_keys) {
  const std::int32_t span = part.last - part.first;
  if (p.sample_keys == 0 || span < 16384) return 0;
  return min(max(span / 64 / stage_keys * stage_keys, 2048), p.sample_keys);
}

/// First key of group j (8 keys) of a sample of `groups` groups, spread evenly over the part.
__device__ inline std::int32_t sample_group(const Part& part, std::int32_t j, std::int32_t groups) {
  const std::int32_t first = part.first & ~7;
  const std::int32_t all = (part.last - first) / 8;
  return first + 8 * static_cast<std::int32_t>(static_cast<std::int64_t>(j) * all / groups);
}

/// Rank in the sample whose score becomes the threshold: the expected rank of the row's last slot and five standard
/// deviations. A guess only: it is verified by counting.
__device__ inline std::int32_t sample_rank(const DeviceRow& row, const Part& part, std::int32_t sampled) {
  const float visible = static_cast<float>(row.last - row.first);
  const float drawn = static_cast<float>(sampled) * visible / static_cast<float>(part.last - part.first);
  const float expected = drawn * static_cast<float>(row.free_slots) / visible;
  return static_cast<std::int32_t>(expected + 5.0F * sqrtf(expected) + 3.0F);
}

}  // namespace dosa::cuda
