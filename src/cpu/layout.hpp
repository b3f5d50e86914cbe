// Memory of one CPU call: how many rows are in flight, and where each of their arrays lies in the workspace.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "contract/total_order.hpp"
#include "cpu/arena.hpp"
#include "cpu/kernels.hpp"
#include "dosa/plan.hpp"
#include "select/kth_largest.hpp"

namespace dosa::cpu {

/// Sample sizes of the cost model: large enough to see a few winners at K/n of a few percent, small enough to cost
/// about one percent of a dense row at 16K keys.
inline constexpr int kRandomSample = 256;
inline constexpr int kSeedSample = 128;
inline constexpr int kSampleKeys = kRandomSample + kSeedSample;
/// Numbers of a sample a head or kind: whole panels are written.
inline constexpr int kSampleStride = (kSampleKeys + 63) / 64 * 64 + 64;
inline constexpr std::int64_t kPredictionStride = 256;  ///< keys that a random one stands for in a long window
inline constexpr int kScreenRows = 32;                  ///< rows of a tile, at most
inline constexpr std::int64_t kModelBlock = 256;  ///< keys scored under the model between two pushes to the selector

/// Keys that rows of a tile refine side by side before the next ones come: their codes are half of a second-level
/// cache.
inline constexpr std::int64_t kRefineKeys = 8192;

/// What the backend itself keeps of a block of rows, of a row in flight with its slot, and of a thread.
inline constexpr std::int64_t kBlockBytes = 256 << 10, kRowWorkBytes = 2048, kThreadBytes = 512;

struct Layout {
  const Kernels* kernels = nullptr;
  int threads = 1;                 ///< as many as were wanted, or fewer where memory holds no more
  int slots = 1;                   ///< tiles in flight
  int tile_rows = 1;               ///< rows that share one pass over packed keys
  std::int64_t room = 0;           ///< keys that the lists of each of them hold: N, or fewer where memory is short
  std::int64_t pool = 0;           ///< keys that a tile's lists hold together; lists of one row could hold N
  std::int64_t keys = 0;           ///< N
  std::int64_t slots_wanted = 0;   ///< min(K, N)
  std::int64_t packed_panels = 0;  ///< of keys that all tiles share, where memory holds them (packed_keys.hpp)
  int heads = 0, head_dim = 0;
  ScoreModel model = ScoreModel::f64;

  /// Parts that the threads of a shared tile cut its keys into, at most: of lists that hold fewer keys than the window
  /// has, each gets a share, into which about all winners should go.
  [[nodiscard]] std::int64_t most_slices() const noexcept;
};

/// Arrays of one row in flight. `list`, `lower` and `upper` hold the keys that the screen kept: a run for each slice of
/// the window during the screen, where the slice's first key has its place, and one run from the start afterwards.
/// Where the lists have room for fewer keys than the window has, all places lie as much closer together.
struct RowMemory {
  float* upper;
  float* lower;
  std::int32_t* list;
  std::int64_t room;   ///< keys that the lists hold; compressing stores may reach kListSlack numbers further
  std::int64_t* kept;  ///< [most_slices]: keys that the screen kept of each slice; kNoRoom: more than fit
  std::byte* dense_form;
  std::byte* screened_form;
  Entry* entries;  ///< ExactSelector::buffer_entries(slots_wanted)
};

inline constexpr std::int64_t kListSlack = 64, kNoRoom = -1;

struct SlotMemory {
  std::span<RowMemory> rows;
  float* upper;  ///< [pool], as `lower` and `list`: the rows' lists
  float* lower;
  std::int32_t* list;
  float* mean;          ///< [D]
  std::int32_t* seeds;  ///< 2 * slots_wanted likely winners, ascending, local indices
  std::int32_t* votes;  ///< scratch of 4 * slots_wanted
};

struct ThreadMemory {
  Panel* panels;          ///< [narrow_panels]: of a screen
  Panel panel;            ///< of gathered keys: the first of `panels`
  float* sample_dots;     ///< [H][kSampleKeys]
  float* sample_numbers;  ///< scale, norm, centred: [3][kSampleKeys]
  float* panel_dots;      ///< [H][panel_keys]
  std::int32_t* sample_keys;
  float* rows;  ///< [H + 4][D]
  float* coef;  ///< [H]
  std::byte* certificate;
  std::size_t certificate_bytes;
  std::byte* model_row;
  float* block_scores;  ///< kModelBlock, and one panel of bounds
  KthScratch* kth;
  std::int8_t* narrow_rows;  ///< [H + 4][D] (certificate::NarrowTarget)
  float* narrow_factors;     ///< [H + 4]
  float* sample_allowances;  ///< [kSampleKeys]: what separates bounds from sums in the dense form
  float* sample_scores;      ///< [kSampleKeys]
  float* predicted;          ///< kSampleKeys + keys / kPredictionStride, and 16 more
};

/// Limits threads and rows in flight so that the workspace stays under 64 MiB + 32 bytes a key + (4 KiB + 32 K bytes) a
/// row in flight (issue 7), whatever the number of threads wanted; never less than one row. Asked again for the threads
/// that it gave, it gives the same.
[[nodiscard]] Layout make_layout(const Kernels& kernels, const Shape& shape, const Options& options, int threads);
[[nodiscard]] std::size_t workspace_bytes(const Layout& layout);

/// Gives a row its lists, for `room` keys from number `at` of the slot's on; returns where the next row's may begin.
std::int64_t lend_list(const SlotMemory& slot, std::int64_t at, std::int64_t room, RowMemory& row) noexcept;

/// Keys that the lists of rows which keep few hold at most. Tests lower it, so that small inputs run out of room.
extern std::atomic<std::int64_t> longest_lists;

/// The cuts themselves: call with the same layout and the run's workspace. A row's lists are the slot's to lend.
[[nodiscard]] RowMemory cut_row(Arena& arena, const Layout& layout);
[[nodiscard]] SlotMemory cut_slot(Arena& arena, const Layout& layout);
[[nodiscard]] ThreadMemory cut_thread(Arena& arena, const Layout& layout);

}  // namespace dosa::cpu
