#include "cuda/few_layout.hpp"

#include <algorithm>
#include <cstdint>

namespace dosa::cuda {
namespace {

constexpr std::int64_t kSharedBytes = 227 * 1024 - 1024;  // of an SM, less what aligning the start may take

// The deepest ring that fits beside the scores; 0 stages where too little is left.
FewSizes sizes_of(std::int64_t rows, std::int64_t head_blocks, std::int64_t panels, std::int64_t tiles) {
  FewSizes sizes{};
  if (rows * tiles * kFewTile * 4 > kSharedBytes) return sizes;
  const std::int64_t blocks = rows * head_blocks;
  const std::int64_t padded = blocks <= 2 ? blocks : (blocks + 3) / 4 * 4;
  sizes.columns = static_cast<std::int32_t>(32 * padded);
  sizes.panels = static_cast<std::int32_t>(panels);
  sizes.tiles = static_cast<std::int32_t>(tiles);
  sizes.rows = static_cast<std::int32_t>(rows);
  const std::int64_t left = kSharedBytes - sizes.bytes();
  const std::int64_t stage = sizes.tile_bytes() + kFewTile * 4;
  const auto stages = static_cast<std::int32_t>(std::min<std::int64_t>(left / stage, kFewMaxStages));
  // Each warpgroup holds a stage while it multiplies, and one more must be on its way.
  const std::int32_t least = std::max(kFewGroups + 2, (sizes.selection_bytes() - 1) / sizes.tile_bytes() + 1);
  sizes.stages = left > 0 && stages >= least ? stages : 0;
  return sizes;
}

}  // namespace

FewLayout few_layout(const Shape& shape, const Options& options, int grid, int most_passes, std::size_t& bytes) {
  FewLayout few;
  // Rows of several requests do not share keys.
  if (shape.rows == 0 || shape.rows > std::int64_t{kFewRows} * most_passes || (shape.paged && shape.requests > 1))
    return few;
  grid = std::min(grid, kFewMaxGrid);
  const std::int64_t head_blocks = shape.heads <= 32 ? 1 : shape.heads <= 64 ? 2 : 4;
  const std::int64_t panels = (shape.head_dim + 127) / 128;
  const std::int64_t all_tiles = std::max<std::int64_t>((shape.keys + kFewTile - 1) / kFewTile, 1);
  few.grid = static_cast<int>(std::min<std::int64_t>(grid, all_tiles));
  const std::int64_t tiles = (all_tiles + few.grid - 1) / few.grid;
  for (int passes = 1; passes <= most_passes; ++passes) {
    const std::int64_t rows = (shape.rows + passes - 1) / passes;
    if (rows > kFewRows) continue;
    few.sizes = sizes_of(rows, head_blocks, panels, tiles);
    if (few.sizes.stages == 0) continue;
    few.rows = static_cast<int>(rows);
    few.passes = static_cast<int>((shape.rows + rows - 1) / rows);
    break;
  }
  if (!few.applies()) return few;
  few.function =
      few_kernel(static_cast<int>(head_blocks), std::min(few.sizes.columns / 32, 4), static_cast<int>(panels));
  const auto take = [&bytes](std::int64_t count, std::size_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return at;
  };
  // Two lines of counters, then the first histograms.
  few.pass_bytes = 256 + static_cast<std::size_t>(few.rows) * kFewBins * sizeof(std::uint32_t);
  few.zeroed = take(few.passes, few.pass_bytes);
  few.later_histograms = take(std::int64_t{few.rows} * (kFewLevels - 1) * kFewBins, sizeof(std::uint32_t));
  few.lists = take(std::int64_t{few.rows} * kFewListed, sizeof(std::uint32_t));
  few.counts = take(std::int64_t{few.rows} * few.grid, sizeof(FewCounts));
  if (options.order == Order::score) few.winners = take(few.rows * options.top_k, sizeof(Entry));
  return few;
}

}  // namespace dosa::cuda
