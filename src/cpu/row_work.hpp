// One row on its way through the CPU backend: prepare (choose the path, build the forms), screen (panel by panel),
// finish (threshold, survivors, exact scores, selection).
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>

#include "contract/row.hpp"
#include "cpu/layout.hpp"
#include "cpu/packed_keys.hpp"
#include "dosa/plan.hpp"

namespace dosa::cpu {

/// How a row's keys are screened. `model`: constants are not finite, so every key is scored under the model.
enum class Screen : std::uint8_t { none, dense, dosa, model };

struct TileContext {
  const Layout* layout;
  const Options* options;
  KeySource keys;
  PackedKeys* packed;
  PackSpec pack;
  std::int64_t first_key = 0;  ///< local index of the tile's first key: where the rows' slabs start
  std::span<const std::int32_t>
      seeds;  ///< likely winners, ascending, distinct, local indices; may lie outside a window
};

/// Where the refined keys of a certified row lie, after the screen: of up to half of the keys (or of the room), lower
/// bounds in the first half of memory.lower, upper bounds in the second. The keys lie behind the kept ones in
/// memory.list, or over them where every key was kept: then a position tells the key.
struct RefinedKeys {
  std::int32_t* key;
  float* lower;
  float* upper;
  std::int64_t most;  ///< beyond these the dense row is cheaper
  std::int64_t room;
  bool over_kept;
};

/// How far a certified row has come with refining, so that rows of a tile can do so side by side.
struct Refining {
  std::int64_t count = 0;                                ///< keys with their bounds in place
  float from = std::numeric_limits<float>::quiet_NaN();  ///< all with bounds from here on are; NaN: none is
  float proven = from;                                   ///< the K-th largest lower bound of them, where it is known
  std::int64_t listed = 0;                               ///< keys behind them whose turn is next
  float listed_from = 0;
  int rounds = 0;
  bool settled = false;  ///< the threshold will not rise by refining more

  /// The listed keys have their bounds.
  void take_listed() noexcept {
    if (listed > 0) proven = std::numeric_limits<float>::quiet_NaN();
    count += listed;
    from = listed_from;
    listed = 0;
  }
};

struct RowWork {
  Row row;
  RowMemory memory{};
  std::int64_t slots = 0;  ///< competing keys to select: K' of docs/certificate.md
  Screen screen = Screen::none;
  Form dense{};                  ///< all heads as the instruction set multiplies them best: bounds of refined keys
  Form screened{};               ///< the screen's: the certificate's, all heads as integers (T11), or `dense`
  float floor = 0;               ///< the screen keeps keys whose upper bound reaches it
  std::int64_t kept = 0;         ///< of them, after the screen: memory.list, upper (dense rows: and lower) [0..kept)
  double expected_survival = 1;  ///< of a certified row, as its choice has it
  double expected_kept = 0;      ///< likewise: the share of keys that reach its floor
  bool keeps_all = false;        ///< it has run out of room, and needs some for all keys
  bool no_room = false;          ///< its lists were full
  bool done = false;             ///< it has its winners; else it must be screened again
  std::size_t place = 0;         ///< in its tile
  Refining refining;
  RowReport report;
  std::int64_t selected = 0;  ///< entries[0..selected) after finish

  [[nodiscard]] std::int64_t visible() const noexcept { return row.free.size(); }
  [[nodiscard]] bool has_room_for_all() const noexcept { return memory.room >= visible(); }
};

/// Starts fetching keys index[0..count), or first.. where index is null, into the second-level cache (of the keys that
/// the next pack will read: it would otherwise wait for each of them).
void fetch_keys(const KeySource& keys, const std::int32_t* index, std::int64_t first, std::int64_t count);

void prepare_row(const TileContext& tile, ThreadMemory& thread, RowWork& work);

/// What a pack for the rows' screens needs: the mean's distances enter only certified forms with an alternative.
[[nodiscard]] PackSpec pack_for(const TileContext& tile, std::span<const RowWork> works);

/// A run of panels that one thread screens: each row's keys of it are kept in a place of their own.
struct Slice {
  std::int64_t number;
  std::int64_t first, last;  ///< local indices of its keys
};

/// Keeps those of keys slice.first .. slice.last - 1 that reach a row's floor, for every row that sees them; of slices
/// that are not the tile's last, their number is a multiple of a panel's.
void screen_keys(const TileContext& tile, ThreadMemory& thread, const Slice& slice, const PackSpec& pack,
                 std::span<RowWork> works);

/// After the last panel, slice by slice in order: their runs become one. Says so in the row where one had no room.
void join_slice(const Slice& slice, RowWork& work);

/// Gives lists to the first rows, as many as the slot has room for, one at least: to those that will keep few keys of
/// layout.room, to others of all that they see. Returns their number.
std::size_t lend_lists(const Layout& layout, const SlotMemory& slot, std::span<RowWork> works) noexcept;

/// For a row that is not done after finish_row: ready for the next screen, with what it has learned.
void begin_again(RowWork& work) noexcept;

[[nodiscard]] RefinedKeys refined_keys(const Kernels& kernels, const RowWork& work);

/// Lists the keys that a certified row refines next: first those with the largest bounds, then those that the threshold
/// found by them leaves. finish_row does the same, and whatever is left to do.
void list_round(const TileContext& tile, ThreadMemory& thread, RowWork& work);

/// Bounds of those of the listed keys that lie in `keys`, for each row: few enough keys that the rows after the first
/// find them in the second-level cache. Only with Kernels::gathered_bounds.
void refine_listed(const TileContext& tile, const Window& keys, std::span<const RowWork> works);

/// Selects: work.memory.entries[0..work.selected), any order; scores are the model's bits where `scores_needed`. Where
/// the screen has kept too few or too many keys for that, the row is not done: it has another floor, form or room.
void finish_row(const TileContext& tile, ThreadMemory& thread, bool scores_needed, RowWork& work);

/// Sees every row of a run between screen and finish: `dosa explain` shows the run itself instead of a reconstruction.
/// While there is an observer no key is left out for a prediction's sake: the row's upper bounds are all there, one a
/// visible key. Called from worker threads, once a row.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  virtual void screened(const RowWork& work) = 0;
};

/// The process's observer; null (the default) costs one load a tile. Set it only while no run is under way.
extern std::atomic<RowObserver*> row_observer;

/// Windows of fewer keys get no predicted threshold, and their dense screens no integers: preparing either would cost
/// more than it saves. Tests lower it, so that small inputs take the same way as large ones.
extern std::atomic<std::int64_t> shortest_predicted;

}  // namespace dosa::cpu
