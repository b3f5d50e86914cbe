// One row on its way through the CPU backend: prepare (choose the path, build the forms), screen (panel by panel),
// finish (threshold, survivors, exact scores, selection).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "contract/row.hpp"
#include "cpu/layout.hpp"
#include "dosa/plan.hpp"

namespace dosa::cpu {

/// How a row's keys are screened. `model`: constants are not finite, so every key is scored under the model.
enum class Screen : std::uint8_t { none, dense, dosa, model };

struct TileContext {
  const Layout* layout;
  const Options* options;
  KeySource keys;
  PackSpec pack;
  std::int64_t first_key = 0;  ///< local index of the tile's first key: where the rows' slabs start
  std::span<const std::int32_t>
      seeds;  ///< likely winners, ascending, distinct, local indices; may lie outside a window
};

struct RowWork {
  Row row;
  RowMemory memory{};
  std::int64_t slots = 0;  ///< competing keys to select: K' of docs/certificate.md
  Screen screen = Screen::none;
  Form dense{}, dosa{};
  RowReport report;
  std::int64_t selected = 0;  ///< entries[0..selected) after finish

  [[nodiscard]] std::int64_t visible() const noexcept { return row.free.size(); }
};

void prepare_row(const TileContext& tile, ThreadMemory& thread, RowWork& work);

/// Bounds of the panel's keys into the slabs of the rows that see it. `panel` holds keys panel_first .. panel_first +
/// panel.count - 1.
void screen_panel(const TileContext& tile, const Panel& panel, std::int64_t panel_first, std::span<RowWork> works);

/// Selects: work.memory.entries[0..work.selected), any order; scores are the model's bits where `scores_needed`.
void finish_row(const TileContext& tile, ThreadMemory& thread, bool scores_needed, RowWork& work);

/// Sees every row of a run between screen and finish, when its bounds are whole: `dosa explain` shows the run itself
/// instead of a reconstruction. Called from worker threads, once a row.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  virtual void screened(const TileContext& tile, const RowWork& work) = 0;
};

/// The process's observer; null (the default) costs one load a tile. Set it only while no run is under way.
extern std::atomic<RowObserver*> row_observer;

}  // namespace dosa::cpu
