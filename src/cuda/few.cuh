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
constexpr int kFewThreads = kFewConsumers + 32;
constexpr int kFewRows = 4;        ///< rows of one launch, at most
constexpr int kFewPasses = 2;      ///< launches of one call, at most; more than one only where forced (Tuning::few)
constexpr int kFewMaxStages = 20;  ///< 165 KiB in flight: far more than one SM's share of bandwidth times latency
constexpr int kFewBins = 4096;     ///< of a histogram: 12 bits of a score's key, then 12, then 8
constexpr int kFewLevels = 3;
constexpr int kFewListed = 8192;  ///< keys of one bin that every block reads for itself
constexpr int kFewMaxGrid = 1024;

/// Bytes of shared memory, from a start at a multiple of 1024.
struct FewSizes {
  std::int32_t columns;  ///< of queries: 32 for each block of heads, padded to whole MMAs
  std::int32_t panels;   ///< 128 bytes of a vector each
  std::int32_t stages, tiles, rows;
  static constexpr std::int32_t kControl = 2048;
  [[nodiscard]] __host__ __device__ constexpr std::int32_t tile_bytes() const { return kFewTile * 128 * panels; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t query_bytes() const { return columns * 128 * panels; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t codes_at() const { return query_bytes(); }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t scales_at() const {
    return codes_at() + stages * tile_bytes();
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t scores_at() const {
    return scales_at() + stages * kFewTile * 4;
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t words() const { return tiles * (kFewTile / 32); }
  /// Two bits a key and row.
  [[nodiscard]] __host__ __device__ constexpr std::int32_t bits_at() const {
    return scores_at() + rows * tiles * kFewTile * 4;
  }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t weights_at() const { return bits_at() + rows * words() * 8; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t control_at() const { return weights_at() + columns * 4; }
  [[nodiscard]] __host__ __device__ constexpr std::int32_t bytes() const { return control_at() + kControl; }
  /// What selection lays over the ring when the last tile is scored: a histogram a row; or one and a list of keys; or
  /// the winners of a row.
  [[nodiscard]] constexpr std::int32_t selection_bytes() const {
    constexpr std::int32_t kHistogram = kFewBins * 4;
    const std::int32_t all_rows = rows * kHistogram, one_row = kHistogram + kFewListed * 4;
    return all_rows > one_row ? all_rows : one_row;
  }
};
static_assert(kFewListed * 4 >= 4096 * static_cast<int>(sizeof(Entry)), "winners lie where the list was: K <= 4096");

/// What a block found of one row, for the others.
struct FewCounts {
  std::uint32_t above, candidates;
};

struct FewParams {
  FewSizes sizes;
  std::int32_t first_row;           ///< of the call: this launch's row 0
  std::int32_t box_rows;            ///< keys of one tensor map box
  bool backwards;                   ///< tiles in descending order: the last ones of the launch before are still in L2
  std::uint32_t* arrived;           ///< the grid's barrier; zero at the launch
  std::uint32_t* listed;            ///< [rows]; zero at the launch
  std::uint32_t* first_histogram;   ///< [rows, kFewBins]; zero at the launch
  std::uint32_t* later_histograms;  ///< [rows, kFewLevels - 1, kFewBins]
  std::uint32_t* lists;  ///< [rows, kFewListed]: bits of a key that are not settled yet, and its block (12 bits)
  FewCounts* counts;     ///< [rows, blocks]
  Entry* winners;        ///< [rows, top_k]: order = score
};

/// Part of Layout.
struct FewLayout {
  int passes = 0;  ///< launches; 0: this path does not apply
  int rows = 0;    ///< of a launch
  int grid = 0;
  FewSizes sizes{};
  const void* function = nullptr;
  std::size_t zeroed = 0, pass_bytes = 0;  ///< offset and size (a launch) of what must be zero
  std::size_t later_histograms = 0, lists = 0, counts = 0, winners = 0;
  [[nodiscard]] bool applies() const { return passes > 0; }
};

/// Blocks of 32 heads that one row takes (1, 2 or 4) and that one MMA covers (1, 2 or 4, no fewer).
const void* few_kernel(int head_blocks, int blocks_an_mma, int panels);

}  // namespace dosa::cuda
