#include "cuda/layout.hpp"

#include <algorithm>

#include "contract/total_order.hpp"
#include "cuda/few_layout.hpp"
#include "dosa/cuda.hpp"

namespace dosa::cuda {
namespace {

// Rows that will walk the same keys: what a block of rows should hold.
std::int64_t rows_together(const Shape& shape) {
  if (!shape.paged || shape.requests <= 1) return shape.rows;
  if (shape.row_request) return std::min<std::int64_t>(shape.rows, 8);
  return shape.rows / std::max<std::int64_t>(shape.requests, 1);
}

}  // namespace

Tuning& tuning() noexcept {
  thread_local Tuning tuning;
  return tuning;
}

Layout layout_of(const Shape& shape, const Options& options, int multiprocessors) {
  const Tuning& forced = tuning();
  Layout layout;
  const int steps = static_cast<int>(shape.head_dim / 32);
  const std::int64_t together = forced.rows_together > 0 ? forced.rows_together : rows_together(shape);
  layout.kernel = shape.heads <= 32   ? kernel_h32(steps, together)
                  : shape.heads <= 64 ? kernel_h64(steps, together)
                                      : kernel_h128(steps);
  const int stage_keys = layout.kernel.stage_keys;
  layout.blocks = static_cast<int>((shape.rows + layout.kernel.rows - 1) / layout.kernel.rows);
  const int stages = static_cast<int>(std::max<std::int64_t>((shape.keys + stage_keys - 1) / stage_keys, 1));
  // Few rows: their keys are split over the chip. Every piece has at least four stages, or the pieces cost more than
  // they save.
  const int wanted = layout.blocks == 0 ? 1 : multiprocessors / layout.blocks;
  layout.chunks = forced.chunks > 0 ? std::min(forced.chunks, 512) : std::clamp(wanted, 1, std::max(stages / 4, 1));
  // K entries to keep, and room for 16 stages that keep everything before a buffer must be cut back.
  layout.capacity = static_cast<std::int32_t>(std::max<std::int64_t>(options.top_k, 512) + 4096);
  layout.sample_keys = forced.sample_keys >= 0 ? std::min(forced.sample_keys / 256 * 256, 4096) : 4096;
  if (shape.keys < 16384) layout.sample_keys = 0;
  if (layout.chunks > 1 && layout.sample_keys > 0)
    layout.sample_chunks = std::clamp(layout.chunks, 1, layout.sample_keys / stage_keys);
  const std::int64_t units = static_cast<std::int64_t>(layout.blocks) * std::max(layout.chunks, layout.sample_chunks);
  layout.grid = static_cast<int>(std::min<std::int64_t>(units, forced.grid > 0 ? forced.grid : multiprocessors));

  std::size_t bytes = 0;
  const auto take = [&bytes](std::int64_t count, std::size_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return at;
  };
  const std::int64_t pieces = std::max(layout.chunks, layout.sample_chunks);
  layout.counters = take(1, sizeof(DeviceCounters));
  // Behind the counters, so that one memset zeroes both.
  // Two launches read the keys twice: at 1M keys the four kernels for many rows are then the quicker ones.
  if (forced.few == 1 || (forced.few < 0 && forced.chunks == 0))
    layout.few = few_layout(shape, options, forced.grid > 0 ? forced.grid : multiprocessors,
                            forced.few == 1 ? kFewPasses : 1, bytes);
  layout.buffers =
      layout.chunks == 1
          ? take(static_cast<std::int64_t>(layout.grid) * layout.kernel.rows * layout.capacity, sizeof(Entry))
          : take(shape.rows * pieces * layout.capacity, sizeof(Entry));
  if (layout.chunks > 1) {
    layout.counts = take(shape.rows * pieces, sizeof(std::uint32_t));
    layout.ranks = take(shape.rows, sizeof(std::uint32_t));
    layout.thresholds = take(shape.rows, sizeof(float));
    layout.repeats = take(shape.rows, sizeof(std::uint32_t));
  }
  layout.bytes = bytes + 256;  // the start is rounded up to a multiple of 256
  return layout;
}

}  // namespace dosa::cuda
