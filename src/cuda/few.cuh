// Few rows in one launch: plan and parameters of the kernel in few.cu, and its shared memory, which the host sizes and
// the device walks by the same functions.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/params.hpp"

namespace dosa::cuda {

constexpr int kFewTile = 64;   ///< keys of one wgmma, and of one stage of the ring
constexpr int kFewGroups = 4;  ///< consumer warpgroups: tile i of a block belongs to warpgroup i % 4
constexpr int kFewWarps = 4 * kFewGroups;
constexpr int kFewConsumers = 32 * kFewWarps;
constexpr int kFewThreads = kFewConsumers + 128;  ///< and a warp that loads, one that finds the bound, two that idle
// A launch of 640 threads gets 96 registers each; the last warpgroup passes on what it does not need.
constexpr int kFewConsumerRegisters = 104, kFewHelperRegisters = 64;
static_assert(4 * kFewConsumerRegisters + kFewHelperRegisters == 5 * 96);
constexpr int kFewRows = 4;         ///< rows of one launch, at most
constexpr int kFewPasses = 2;       ///< launches of one call, at most
constexpr int kFewMaxStages = 20;   ///< 160 KiB in flight: far more than one SM's share of bandwidth times latency
constexpr int kFewScaleTiles = 16;  ///< tiles whose scales one copy brings: 4 KiB
constexpr int kFewMaxTiles = 896;   ///< of a block: more scores than 227 KiB hold
constexpr int kFewEarlyPart = 8;    ///< one in so many of a block's tiles tells the bound

constexpr int kFewBins = 2048;                  ///< of a histogram: 11 bits of a key, or of its distance to the bound
constexpr int kFewHistogram = kFewBins + 32;    ///< in L2: bins, and sums of 64 bins each
constexpr int kFewLevels = 4;                   ///< a bin may be what lies over the rest: 32, 32, 21, 10 bits
constexpr int kFewHistograms = kFewLevels + 1;  ///< and the early one
constexpr int kFewListed = 1024;                ///< keys of one bin that every block reads for itself
constexpr int kFewMaxGrid = 1024;
static_assert(kFewMaxTiles * kFewTile < 1 << 16, "a block's bins are 16 bits wide");

/// Bytes of shared memory, from a start at a multiple of 1024.
struct FewSizes {
  std::int32_t columns;  ///< of queries: 32 for each block of heads and row slot
  std::int32_t slots;    ///< 1, 2 or 4 rows side by side in an MMA
  std::int32_t panels;   ///< 128 bytes of a vector each
  std::int32_t stages, tiles, rows;
  static constexpr std::int32_t kControl = 2048;
  [[nodiscard]] __host__ __device__ constexpr std::int32_t tile_bytes() const { return kFewTile * 128 * panels; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t query_bytes() const { return columns * 128 * panels; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t codes_at() const { return query_bytes(); }
  /// Row 0's scores lie where the keys' scales were.
  [[nodiscard]] __host__ __device__ constexpr std::int32_t scores_at() const {
    return codes_at() + stages * tile_bytes();
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t words() const { return tiles * (kFewTile / 32); }
  /// A bit a key and row: it reaches the row's bound.
  [[nodiscard]] __host__ __device__ constexpr std::int32_t bits_at() const {
    return scores_at() + rows * tiles * kFewTile * 4;
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t bins_at() const {
    return bits_at() + (rows * words() * 4 + 15) / 16 * 16;
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t weights_at() const {
    return bins_at() + rows * kFewBins * 2;
  }
  /// Floats from one lane of a quad to the next: 4 banks apart.
  [[nodiscard]] __host__ __device__ constexpr std::int32_t weight_lane() const { return 8 * slots + 4; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t control_at() const {
    return weights_at() + columns / (32 * slots) * 16 * weight_lane();
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t bytes() const { return control_at() + kControl; }
  /// What selection lays over queries and ring when the last tile is scored: of each row two bits a key and a list; or
  /// the winners of one row.
  [[nodiscard]] __host__ __device__ constexpr std::int32_t row_bytes() const {
    return kFewListed * 8 + (words() * 8 + 15) / 16 * 16;
  }
  [[nodiscard]] constexpr bool selection_fits() const {
    const std::int32_t room = scores_at();
    return rows * row_bytes() <= room && 4096 * static_cast<std::int32_t>(sizeof(Entry)) <= room;
  }
};

/// What a block found of one row, for the others.
struct FewCounts {
  std::uint32_t above, candidates;
};

/// A key of a row's list, and the block that has it.
struct FewListedKey {
  std::uint32_t key, block;
};

/// How far the blocks of a launch are; a line of L2 each.
struct FewProgress {
  alignas(128) std::uint32_t early, arrived;
  alignas(128) std::uint32_t listed[kFewRows];
};

struct FewParams {
  FewSizes sizes;
  std::int32_t first_row;     ///< of the call: this launch's row 0
  std::int32_t box_rows;      ///< keys of one tensor map box
  bool backwards;             ///< tiles in descending order: the last ones of the launch before are still in L2
  FewProgress* progress;      ///< the kernel clears it,
  std::uint32_t* histograms;  ///< and these: [rows, kFewHistograms, kFewHistogram], right behind it
  FewListedKey* lists;        ///< [rows, kFewListed]
  FewCounts* counts;          ///< [rows, blocks]
  Entry* winners;             ///< [rows, top_k]: order = score
};

/// Part of Layout.
struct FewLayout {
  int passes = 0;  ///< launches; 0: this path does not apply
  int rows = 0;    ///< of a launch
  int grid = 0;
  FewSizes sizes{};
  const void* function = nullptr;
  std::size_t progress = 0, lists = 0, counts = 0, winners = 0;  ///< offsets
  [[nodiscard]] bool applies() const { return passes > 0; }
};

/// Blocks of 32 heads that one row takes (1, 2 or 4); row slots (1, 2 or 4).
const void* few_kernel(int head_blocks, int slots, int panels);

}  // namespace dosa::cuda
