#include "cpu/layout.hpp"

#include <algorithm>
#include <limits>

#include "certificate/dosa_bound.hpp"
#include "select/exact_selector.hpp"

namespace dosa::cpu {
namespace {

constexpr std::int64_t kBudgetBase = (std::int64_t{64} << 20) - kBlockBytes;
constexpr std::int64_t kBudgetKey = 32;
constexpr std::int64_t kListBytes = 2 * sizeof(float) + sizeof(std::int32_t);

/// What a slice should have room for where lists are short: all winners may lie in one, of as many keys again the
/// bounds reach a floor that a sample predicted, and as many again are about to be refined.
std::int64_t slice_room(const Layout& layout) { return 4 * layout.slots_wanted + 1024; }

/// Lists in which a row can be prepared (seeds, random keys of a sample) and screened.
std::int64_t least_room(const Layout& layout) {
  return layout.threads * slice_room(layout) + layout.keys / kPredictionStride;
}

Layout shorten_for_tests(Layout layout) {
  const std::int64_t prepared = 2 * layout.slots_wanted + layout.keys / kPredictionStride + 16;
  layout.room = std::min(layout.room, std::max(prepared, longest_lists.load(std::memory_order_relaxed)));
  return layout;
}

}  // namespace

std::atomic<std::int64_t> longest_lists{std::numeric_limits<std::int64_t>::max()};

std::int64_t Layout::most_slices() const noexcept {
  // Of keys in the last slice more reach a floor than of others: the fewer slices, the longer the share of each.
  const std::int64_t most = std::int64_t{4} * threads;
  return room == keys ? most : std::clamp<std::int64_t>(room / slice_room(*this), 1, threads);
}

std::int64_t lend_list(const SlotMemory& slot, std::int64_t at, std::int64_t room, RowMemory& row) noexcept {
  row.upper = slot.upper + at;
  row.lower = slot.lower + at;
  row.list = slot.list + at;
  row.room = room;
  return at + room + kListSlack;
}

RowMemory cut_row(Arena& arena, const Layout& layout) {
  const Kernels& kernels = *layout.kernels;
  RowMemory row{};
  row.kept = arena.take<std::int64_t>(layout.most_slices());
  row.dense_form = arena.take<std::byte>(static_cast<std::int64_t>(kernels.form_bytes(layout.heads, layout.head_dim)));
  row.screened_form =
      arena.take<std::byte>(static_cast<std::int64_t>(kernels.form_bytes(layout.heads + 4, layout.head_dim)));
  row.entries = arena.take<Entry>(ExactSelector::buffer_entries(layout.slots_wanted));
  return row;
}

SlotMemory cut_slot(Arena& arena, const Layout& layout) {
  SlotMemory slot{};
  slot.rows = {arena.take<RowMemory>(layout.tile_rows), static_cast<std::size_t>(layout.tile_rows)};
  slot.upper = arena.take<float>(layout.pool);
  slot.lower = arena.take<float>(layout.pool);
  slot.list = arena.take<std::int32_t>(layout.pool);
  slot.mean = arena.take<float>(layout.head_dim);
  slot.seeds = arena.take<std::int32_t>(2 * layout.slots_wanted);
  slot.votes = arena.take<std::int32_t>(4 * layout.slots_wanted);
  return slot;
}

ThreadMemory cut_thread(Arena& arena, const Layout& layout) {
  const Kernels& kernels = *layout.kernels;
  constexpr std::int64_t keys = kSampleStride;
  ThreadMemory thread{};
  thread.panels = arena.take<Panel>(kernels.narrow_panels);
  for (int p = 0; p < kernels.narrow_panels; ++p) {
    auto* const memory =
        arena.take<std::byte>(static_cast<std::int64_t>(kernels.panel_bytes(layout.head_dim, layout.model)));
    if (memory != nullptr) thread.panels[p] = kernels.make_panel(memory, layout.head_dim, layout.model);
  }
  if (thread.panels != nullptr) thread.panel = thread.panels[0];
  thread.sample_dots = arena.take<float>(keys * layout.heads);
  thread.sample_numbers = arena.take<float>(3 * keys);
  thread.panel_dots = arena.take<float>(std::int64_t{kernels.panel_keys} * layout.heads);
  thread.sample_keys = arena.take<std::int32_t>(keys);
  thread.rows = arena.take<float>(std::int64_t{layout.heads + 4} * layout.head_dim);
  thread.coef = arena.take<float>(layout.heads);
  if (kernels.costs.narrow.block_rows > 0) {
    thread.narrow_rows = arena.take<std::int8_t>(std::int64_t{layout.heads + 4} * layout.head_dim);
    thread.narrow_factors = arena.take<float>(layout.heads + 4);
  }
  thread.certificate_bytes = certificate::scratch_bytes(layout.heads, layout.head_dim, kSampleKeys);
  thread.certificate = arena.take<std::byte>(static_cast<std::int64_t>(thread.certificate_bytes));
  thread.model_row = arena.take<std::byte>(
      static_cast<std::int64_t>(kernels.model_bytes(layout.model, layout.heads, layout.head_dim)));
  thread.block_scores = arena.take<float>(kModelBlock + 2 * 64);
  thread.kth = arena.take<KthScratch>(1);
  thread.sample_allowances = arena.take<float>(keys);
  thread.sample_scores = arena.take<float>(keys);
  thread.predicted = arena.take<float>(keys + layout.keys / kPredictionStride + 16);
  return thread;
}

std::size_t workspace_bytes(const Layout& layout) {
  Arena arena;
  for (int t = 0; t < layout.threads; ++t) (void)cut_thread(arena, layout);
  for (int s = 0; s < layout.slots; ++s) {
    (void)cut_slot(arena, layout);
    for (int r = 0; r < layout.tile_rows; ++r) (void)cut_row(arena, layout);
  }
  return arena.wanted_bytes();
}

Layout make_layout(const Kernels& kernels, const Shape& shape, const Options& options, int threads) {
  Layout layout;
  layout.kernels = &kernels;
  layout.threads = threads;
  layout.keys = layout.room = shape.keys;
  layout.pool = layout.keys + kListSlack;
  layout.slots_wanted = std::min(options.top_k, shape.keys);
  layout.heads = static_cast<int>(shape.heads);
  layout.head_dim = static_cast<int>(shape.head_dim);
  layout.model = options.model;

  const auto used = [&](const auto& cut) {
    Arena arena;
    (void)cut(arena, layout);
    return static_cast<std::int64_t>(arena.used());
  };
  // What a row in flight takes beyond the allowance that it brings; each is charged with a slot, as if tiles were one
  // row.
  const auto row_excess = [&] {
    return std::max<std::int64_t>(1,
                                  used(cut_row) + used(cut_slot) + kRowWorkBytes - (4096 + 32 * layout.slots_wanted));
  };
  const std::int64_t memory = kBudgetBase + kBudgetKey * layout.keys;
  const std::int64_t thread_bytes = used(cut_thread) + kThreadBytes;
  // More threads than memory holds would share tiles of one row: packing keys for one row costs more than the row.
  const std::int64_t most_threads = std::min(memory / 4 * 3, memory - row_excess()) / thread_bytes;
  layout.threads = static_cast<int>(std::clamp<std::int64_t>(most_threads, 1, threads));
  const std::int64_t for_rows = memory - thread_bytes * layout.threads, row_bytes = row_excess();
  const std::int64_t in_flight = std::max<std::int64_t>(1, for_rows / row_bytes);

  const std::int64_t rows = std::max<std::int64_t>(1, shape.rows);
  const std::int64_t rows_wanted = std::min<std::int64_t>({kernels.tile_rows, kScreenRows, rows});
  const auto tiles_of = [&](std::int64_t tile_rows) { return (rows + tile_rows - 1) / tile_rows; };
  // Several requests at once would each need packed keys of their own.
  const bool packs = kernels.narrow_panel_bytes != nullptr && options.ablation.narrow && shape.requests == 1;
  const std::int64_t panels = (layout.keys + kernels.panel_keys - 1) / kernels.panel_keys;
  const auto packed_bytes = [&] {
    return panels * (static_cast<std::int64_t>(kernels.narrow_panel_bytes(layout.head_dim, layout.model)) + 1) +
           2 * static_cast<std::int64_t>(Arena::kAlignment);
  };

  // Lists for all keys of every row, as many rows as memory holds.
  layout.tile_rows = static_cast<int>(std::min(rows_wanted, in_flight));
  layout.pool = layout.tile_rows * (layout.keys + kListSlack);
  // One tile a thread where memory and rows allow it; otherwise all threads share the tile in flight.
  const bool tile_a_thread =
      in_flight / layout.tile_rows >= layout.threads && tiles_of(layout.tile_rows) >= 2 * layout.threads;
  layout.slots = tile_a_thread ? layout.threads : 1;

  // What is left keeps packed keys.
  const bool would_pack = packs && tiles_of(rows_wanted) > 1;
  if (would_pack && packed_bytes() <= for_rows - layout.slots * layout.tile_rows * row_bytes)
    layout.packed_panels = panels;
  if (layout.slots > 1 || layout.packed_panels > 0 || (in_flight >= rows_wanted && !would_pack))
    return shorten_for_tests(layout);

  // So many keys that lists for all of them leave few rows to share a pass over them, or no memory for packed keys: a
  // row that knows a floor keeps few keys. Those that keep all of theirs come as many at a time as the lists hold.
  const auto shorten = [&](std::int64_t tile_rows, std::int64_t packed, std::int64_t least) {
    Layout shorter = layout;
    shorter.tile_rows = static_cast<int>(tile_rows);
    shorter.pool = 0;
    Arena arena;
    for (std::int64_t r = 0; r < tile_rows; ++r) (void)cut_row(arena, shorter);
    (void)cut_slot(arena, shorter);
    const std::int64_t fixed = static_cast<std::int64_t>(arena.used()) +
                               tile_rows * (kRowWorkBytes - 4096 - 32 * layout.slots_wanted) +
                               3 * static_cast<std::int64_t>(Arena::kAlignment);
    shorter.pool = (for_rows - packed - std::max<std::int64_t>(0, fixed)) / kListBytes;
    shorter.room = std::min(shorter.pool / tile_rows - kListSlack, layout.keys);
    if (shorter.pool < layout.keys + kListSlack || shorter.room < least) return false;
    shorter.packed_panels = packed > 0 ? panels : 0;
    layout = shorter;
    return true;
  };
  const std::int64_t least = least_room(layout);
  bool shortened = would_pack && shorten(rows_wanted, packed_bytes(), std::max(least, layout.keys / 4));
  for (std::int64_t tile_rows = rows_wanted; !shortened && tile_rows > in_flight; --tile_rows)
    shortened = shorten(tile_rows, 0, least);
  return shorten_for_tests(layout);
}

}  // namespace dosa::cpu
