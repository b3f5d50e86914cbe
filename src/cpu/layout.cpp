#include "cpu/layout.hpp"

#include <algorithm>

#include "certificate/dosa_bound.hpp"
#include "select/exact_selector.hpp"

namespace dosa::cpu {
namespace {

constexpr std::int64_t kBudgetBase = (std::int64_t{64} << 20) - kBlockBytes;
constexpr std::int64_t kBudgetKey = 32;

std::int64_t slab(const Layout& layout) { return layout.keys + 64; }  // compressing stores reach past the last key

}  // namespace

RowMemory cut_row(Arena& arena, const Layout& layout) {
  const Kernels& kernels = *layout.kernels;
  RowMemory row{};
  row.upper = arena.take<float>(slab(layout));
  row.lower = arena.take<float>(slab(layout));
  row.list = arena.take<std::int32_t>(slab(layout));
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
  layout.keys = shape.keys;
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
  const std::int64_t in_flight = std::max<std::int64_t>(1, (memory - thread_bytes * layout.threads) / row_excess());

  const std::int64_t rows = std::max<std::int64_t>(1, shape.rows);
  layout.tile_rows = static_cast<int>(std::min<std::int64_t>({kernels.tile_rows, kScreenRows, rows, in_flight}));
  // One tile a thread where memory and rows allow it; otherwise all threads share the tile in flight.
  const std::int64_t tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  const bool tile_a_thread = in_flight / layout.tile_rows >= layout.threads && tiles >= 2 * layout.threads;
  layout.slots = tile_a_thread ? layout.threads : 1;

  // What is left keeps packed keys. Several requests at once would each need their own.
  if (kernels.narrow_panel_bytes != nullptr && options.ablation.narrow && shape.requests == 1 && tiles > 1) {
    const std::int64_t panels = (layout.keys + kernels.panel_keys - 1) / kernels.panel_keys;
    const auto bytes = static_cast<std::int64_t>(kernels.narrow_panel_bytes(layout.head_dim, layout.model)) + 1;
    const std::int64_t rows_in_flight = layout.slots * layout.tile_rows;
    const std::int64_t left = memory - thread_bytes * layout.threads - rows_in_flight * row_excess();
    if (panels * bytes + 2 * static_cast<std::int64_t>(Arena::kAlignment) <= left) layout.packed_panels = panels;
  }
  return layout;
}

}  // namespace dosa::cpu
