// The CPU backend: blocks of rows, tiles of rows that share keys, panels of keys. Either every thread works on tiles of
// its own, or (few rows, or keys so many that memory holds few rows) all threads share one tile at a time, cut along
// its keys.
#include "contract/backend.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "contract/text.hpp"
#include "contract/write_row.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/float_environment.hpp"
#include "cpu/forked.hpp"
#include "cpu/layout.hpp"
#include "cpu/packed_keys.hpp"
#include "cpu/row_work.hpp"
#include "cpu/tiles.hpp"
#include "select/carry.hpp"
#include "select/exact_selector.hpp"
#include "select/seeds.hpp"

namespace dosa::detail {
namespace {

using namespace cpu;

constexpr std::int64_t kBlockRows = 4096;  // rows sorted at a time: bounds the order's memory, not the result
constexpr std::int64_t kBatchTiles = 2;    // tiles in a row on one thread, so that the second has seeds from the first
constexpr std::int64_t kVotingRows = 4;    // the last four rows' winners, about 1.5 K keys, hold the next row's best

struct CpuPlan {
  Layout layout;
  std::int64_t block_rows = 0;
  std::int64_t seed_capacity = 0;
};

CpuPlan cpu_plan(const PlanState& state, const Kernels& kernels) {
  CpuPlan plan;
  plan.layout = make_layout(kernels, state.shape, state.options, state.options.threads);
  plan.block_rows = std::min(kBlockRows, state.shape.rows);
  plan.seed_capacity = 2 * plan.layout.slots_wanted;
  return plan;
}

struct WorkspaceCuts {
  std::int32_t* order;
  Tile* tiles;
  std::int64_t* batches;  ///< first tile of each batch
  RowWork* works;         ///< [slots][tile_rows]
  PackedKeys packed;
};

static_assert(kBlockRows * (sizeof(std::int32_t) + sizeof(Tile) + sizeof(std::int64_t)) + 8 * Arena::kAlignment <=
              kBlockBytes);
static_assert(sizeof(RowWork) + sizeof(SlotMemory) + sizeof(Stats) + 4 * Arena::kAlignment <= kRowWorkBytes);
static_assert(sizeof(ThreadMemory) + 2 * Arena::kAlignment <= kThreadBytes);

WorkspaceCuts cut_shared(Arena& arena, const CpuPlan& plan) {
  WorkspaceCuts cuts{};
  cuts.order = arena.take<std::int32_t>(plan.block_rows);
  cuts.tiles = arena.take<Tile>(plan.block_rows);
  cuts.batches = arena.take<std::int64_t>(plan.block_rows + 1);
  cuts.works = arena.take<RowWork>(std::int64_t{plan.layout.slots} * plan.layout.tile_rows);
  cuts.packed = PackedKeys(arena, plan.layout);
  return cuts;
}

void plan_cpu(PlanState& state) {
  const Choice choice = choose(state.options.isa);
  state.options.isa = choice.kernels->isa;
  (void)pool_was_lost();  // notes that oneTBB is about to be used
  if (state.options.threads == 0) state.options.threads = tbb::info::default_concurrency();
  const CpuPlan plan = cpu_plan(state, *choice.kernels);
  const bool fewer_threads = plan.layout.threads < state.options.threads;
  state.options.threads = plan.layout.threads;
  Arena arena;
  (void)cut_shared(arena, plan);
  state.workspace_bytes =
      arena.used() + workspace_bytes(plan.layout) +
      static_cast<std::size_t>(plan.layout.threads) * (sizeof(ThreadMemory) + Arena::kAlignment) +
      static_cast<std::size_t>(plan.layout.slots) * (sizeof(SlotMemory) + sizeof(Stats) + 2 * Arena::kAlignment);
  state.carry_bytes = SeedCarry::bytes(state.shape, plan.seed_capacity);
  state.why = text::format("cpu, {}; {}, {}; {} thread{}{}, {}", state.backend_asked ? "asked for" : "automatic",
                           name(state.options.isa), choice.by, state.options.threads,
                           state.options.threads == 1 ? "" : "s", fewer_threads ? " (memory for no more)" : "",
                           plan.layout.slots > 1 ? "a tile of rows each" : "one tile of rows at a time");
}

class Run {
 public:
  Run(const PlanState& state, const Problem& problem, const Selection& selection, std::span<std::byte> workspace,
      Carry carry, Stats& stats);
  void execute();

 private:
  [[nodiscard]] Row row_at(std::int32_t position) const {
    return make_row(problem_, state_.shape, state_.options, block_first_ + position);
  }
  [[nodiscard]] std::span<RowWork> works_of(std::size_t slot, const Tile& tile) const {
    return {cuts_.works + slot * static_cast<std::size_t>(plan_.layout.tile_rows),
            static_cast<std::size_t>(tile.last - tile.first)};
  }
  void run_block(std::int64_t first, std::int64_t count);
  void cut_tiles(std::int64_t count);
  void run_batch(std::size_t slot, std::int64_t batch, bool shared);
  void run_tile(std::size_t slot_number, const Tile& tile, std::int64_t& seed_count, bool shared);
  void find_mean(const Tile& tile, const KeySource& keys, float* mean) const;
  void finish_tile(std::size_t slot_number, std::span<RowWork> works, std::int64_t& seed_count, bool last_of_request);
  void count_row(const RowWork& work, Stats& counters);

  const PlanState& state_;
  const Problem& problem_;
  const Selection& selection_;
  Stats& stats_;
  CpuPlan plan_;
  WorkspaceCuts cuts_{};
  std::span<SlotMemory> slots_;
  std::span<ThreadMemory> threads_;
  std::span<Stats> counters_;  ///< one a slot
  SeedCarry carry_;
  bool scores_needed_;
  const bool alone_ = pool_was_lost();
  std::int64_t block_first_ = 0, tile_count_ = 0, batch_count_ = 0;
};

Run::Run(const PlanState& state, const Problem& problem, const Selection& selection, std::span<std::byte> workspace,
         Carry carry, Stats& stats)
    : state_(state),
      problem_(problem),
      selection_(selection),
      stats_(stats),
      plan_(cpu_plan(state, *choose(state.options.isa).kernels)),
      carry_(carry, state.shape, plan_.seed_capacity),
      scores_needed_(state.options.scores || state.options.order == Order::score) {
  Arena arena(workspace.data());
  cuts_ = cut_shared(arena, plan_);
  const Layout& layout = plan_.layout;
  threads_ = {arena.take<ThreadMemory>(layout.threads), static_cast<std::size_t>(layout.threads)};
  slots_ = {arena.take<SlotMemory>(layout.slots), static_cast<std::size_t>(layout.slots)};
  counters_ = {arena.take<Stats>(layout.slots), static_cast<std::size_t>(layout.slots)};
  for (Stats& counters : counters_) std::construct_at(&counters);
  for (RowWork& work : std::span(cuts_.works, slots_.size() * static_cast<std::size_t>(layout.tile_rows)))
    std::construct_at(&work);
  for (ThreadMemory& thread : threads_) std::construct_at(&thread, cut_thread(arena, layout));
  for (SlotMemory& slot : slots_) {
    std::construct_at(&slot, cut_slot(arena, layout));
    for (RowMemory& row : slot.rows) std::construct_at(&row, cut_row(arena, layout));
  }
}

/// Threads beyond the processors are the caller's wish; TBB would warn on standard error and give fewer.
std::optional<tbb::global_control> allow_threads(int threads) {
  std::optional<tbb::global_control> more;
  if (threads > tbb::info::default_concurrency())
    more.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
  return more;
}

template <class Body>
void on_threads(int threads, bool alone, const Body& body) {
  if (alone) return body();
  [[maybe_unused]] const std::optional<tbb::global_control> more = allow_threads(threads);
  tbb::task_arena arena(threads);
  arena.execute(body);
}

void Run::execute() {
  if (state_.shape.rows == 0) return;
  std::int64_t first_key = state_.shape.keys;
  for (std::int64_t t = 0; t < state_.shape.rows && plan_.layout.packed_panels > 0; ++t) {
    const Window keys = make_row(problem_, state_.shape, state_.options, t).free;
    if (keys.size() > 0) first_key = std::min(first_key, keys.first);
  }
  cuts_.packed.start(first_key);
  on_threads(state_.options.threads, alone_, [&] {
    for (std::int64_t first = 0; first < state_.shape.rows; first += plan_.block_rows)
      run_block(first, std::min(plan_.block_rows, state_.shape.rows - first));
  });
  carry_.finish();
  for (const Stats& counters : counters_) {
    stats_.rows += counters.rows;
    stats_.rows_dense += counters.rows_dense;
    stats_.rows_dosa += counters.rows_dosa;
    stats_.rows_model += counters.rows_model;
    stats_.rows_rescreened += counters.rows_rescreened;
    stats_.visible += counters.visible;
    stats_.survivors += counters.survivors;
    stats_.exact += counters.exact;
    stats_.dot_products += counters.dot_products;
    stats_.dense_dot_products += counters.dense_dot_products;
  }
}

void Run::cut_tiles(std::int64_t count) {
  const auto make = [&](std::int32_t position) { return row_at(position); };
  const std::span<std::int32_t> order{cuts_.order, static_cast<std::size_t>(count)};
  std::iota(order.begin(), order.end(), 0);
  sort_rows(order, make);
  tile_count_ = batch_count_ = 0;
  std::int64_t request = -1;
  for (std::int64_t first = 0; first < count;) {
    const Tile tile = next_tile(order, first, plan_.layout.tile_rows, make);
    const std::int64_t tile_request = row_at(order[static_cast<std::size_t>(first)]).request;
    const std::int64_t in_batch = batch_count_ == 0 ? kBatchTiles : tile_count_ - cuts_.batches[batch_count_ - 1];
    if (in_batch >= kBatchTiles || tile_request != request) cuts_.batches[batch_count_++] = tile_count_;
    request = tile_request;
    cuts_.tiles[tile_count_++] = tile;
    first = tile.last;
  }
  cuts_.batches[batch_count_] = tile_count_;
}

void Run::run_block(std::int64_t first, std::int64_t count) {
  block_first_ = first;
  cut_tiles(count);
  if (!alone_ && plan_.layout.slots > 1 && batch_count_ > 1) {
    // A slot is a task of its own that takes the next batch when it is done: no tile waits for another.
    std::atomic<std::int64_t> next{0};
    tbb::parallel_for(
        std::size_t{0}, slots_.size(),
        [&](std::size_t slot) {
          const FloatEnvironment environment;
          for (std::int64_t batch = next++; batch < batch_count_; batch = next++) run_batch(slot, batch, false);
        },
        tbb::simple_partitioner());
    return;
  }
  const FloatEnvironment environment;
  for (std::int64_t batch = 0; batch < batch_count_; ++batch) run_batch(0, batch, !alone_);
}

void Run::run_batch(std::size_t slot, std::int64_t batch, bool shared) {
  const Tile& head = cuts_.tiles[cuts_.batches[batch]];
  const std::int64_t request = row_at(cuts_.order[head.first]).request;
  std::int64_t seeds = carry_.read(request, state_.shape.keys, slots_[slot].seeds);
  for (std::int64_t tile = cuts_.batches[batch]; tile < cuts_.batches[batch + 1]; ++tile)
    run_tile(slot, cuts_.tiles[tile], seeds, shared);
}

// Any mean is valid (T4); an average over a fixed sample of the tile's keys is near the best.
void Run::find_mean(const Tile& tile, const KeySource& keys, float* mean) const {
  constexpr std::int64_t kMeanKeys = 256;
  const int head_dim = plan_.layout.head_dim;
  std::fill(mean, mean + head_dim, 0.0F);
  const std::int64_t n = tile.keys.size();
  const std::int64_t sampled = std::min(kMeanKeys, n);
  std::int64_t counted = 0;
  for (std::int64_t j = 0; j < sampled; ++j) {
    const KeyAddress key = keys.locate(tile.keys.first + j * n / sampled);
    if (key.codes == nullptr || std::any_of(key.codes, key.codes + head_dim, e4m3_is_nan)) continue;
    for (int d = 0; d < head_dim; ++d) mean[d] += static_cast<float>(e4m3_units(key.codes[d]));
    ++counted;
  }
  const float scale = counted == 0 ? 0.0F : 1.0F / (512.0F * static_cast<float>(counted));
  for (int d = 0; d < head_dim; ++d) mean[d] *= scale;
}

void Run::run_tile(std::size_t slot_number, const Tile& tile, std::int64_t& seed_count, bool shared) {
  SlotMemory& slot = slots_[slot_number];
  const Layout& layout = plan_.layout;
  const Kernels& kernels = *layout.kernels;
  const std::span<RowWork> works = works_of(slot_number, tile);
  for (std::size_t r = 0; r < works.size(); ++r) {
    works[r] = RowWork{};
    works[r].row = row_at(cuts_.order[tile.first + static_cast<std::int64_t>(r)]);
    works[r].place = r;
    works[r].memory = slot.rows[r];
    lend_list(slot, static_cast<std::int64_t>(r) * (layout.room + kListSlack), layout.room, works[r].memory);
  }
  TileContext context;
  context.layout = &layout;
  context.options = &state_.options;
  context.keys = key_source(problem_, works[0].row.request);
  context.first_key = tile.keys.first;
  const bool may_certify = state_.options.path != Path::dense;  // nothing else asks for the mean
  context.pack = {layout.model, may_certify ? slot.mean : nullptr};
  context.packed = &cuts_.packed;
  context.seeds = {slot.seeds, static_cast<std::size_t>(seed_count)};
  if (may_certify) find_mean(tile, context.keys, slot.mean);

  const auto memory = [&]() -> ThreadMemory& {
    return threads_[alone_ ? 0 : static_cast<std::size_t>(tbb::this_task_arena::current_thread_index())];
  };
  const auto for_parts = [&](std::int64_t count, const auto& body) {
    if (!shared) {
      for (std::int64_t part = 0; part < count; ++part) body(memory(), part);
      return;
    }
    tbb::parallel_for(std::int64_t{0}, count, [&](std::int64_t part) {
      const FloatEnvironment environment;
      body(memory(), part);
    });
  };
  const auto for_rows = [&](std::span<RowWork> rows, const auto& body) {
    for_parts(static_cast<std::int64_t>(rows.size()),
              [&](ThreadMemory& thread, std::int64_t r) { body(thread, rows[static_cast<std::size_t>(r)]); });
  };
  const std::int64_t panels = (tile.keys.size() + kernels.panel_keys - 1) / kernels.panel_keys;
  const std::int64_t slices = shared ? std::min(panels, layout.most_slices()) : 1;
  const auto slice_at = [&](std::int64_t number) {
    const auto first = [&](std::int64_t n) { return tile.keys.first + n * panels / slices * kernels.panel_keys; };
    return Slice{number, first(number), std::min(first(number + 1), tile.keys.last)};
  };
  const auto screen = [&](std::span<RowWork> rows) {
    if (std::none_of(rows.begin(), rows.end(),
                     [](const RowWork& work) { return work.screen == Screen::dense || work.screen == Screen::dosa; }))
      return;
    const PackSpec pack = pack_for(context, rows);
    for_parts(slices, [&](ThreadMemory& thread, std::int64_t number) {
      screen_keys(context, thread, slice_at(number), pack, rows);
    });
    for (RowWork& work : rows)
      for (std::int64_t number = 0; number < slices; ++number) join_slice(slice_at(number), work);
  };
  const auto refine_together = [&](std::span<RowWork> rows) {
    if (kernels.gathered_bounds == nullptr || rows.size() <= 1) return;
    for (int round = 0; round < 2; ++round) {
      for_rows(rows, [&](ThreadMemory& thread, RowWork& work) { list_round(context, thread, work); });
      const std::int64_t parts = (tile.keys.size() + kRefineKeys - 1) / kRefineKeys;
      for_parts(parts, [&](ThreadMemory&, std::int64_t part) {
        const std::int64_t first = tile.keys.first + part * kRefineKeys;
        refine_listed(context, {first, std::min(tile.keys.last, first + kRefineKeys)}, rows);
      });
      for (RowWork& work : rows) work.report.dot_products += static_cast<double>(work.refining.listed) * layout.heads;
    }
  };
  // From forms to winners, as many rows at a time as there are lists for; those that must be screened again do so
  // together: packing keys for one row costs several times what the row's screen does.
  const auto select = [&](std::span<RowWork> rows, bool first_time, const auto& again) -> void {
    for (std::span<RowWork> left = rows, some; !left.empty(); left = left.subspan(some.size())) {
      some = left.first(lend_lists(layout, slot, left));
      screen(some);
      RowObserver* const observer = first_time ? row_observer.load(std::memory_order_acquire) : nullptr;
      if (observer != nullptr)
        for (const RowWork& work : some) observer->screened(work);
      refine_together(some);
      for_rows(some, [&](ThreadMemory& thread, RowWork& work) { finish_row(context, thread, scores_needed_, work); });
      const std::span<RowWork> rest(
          std::partition(some.begin(), some.end(), [](const RowWork& work) { return work.done; }), some.end());
      if (rest.empty()) continue;
      std::for_each(rest.begin(), rest.end(), begin_again);
      again(rest, false, again);
      std::sort(some.begin(), some.end(), [](const RowWork& a, const RowWork& b) { return a.place < b.place; });
    }
  };

  for_rows(works, [&](ThreadMemory& thread, RowWork& work) { prepare_row(context, thread, work); });
  select(works, true, select);

  const bool last_of_request =
      &tile + 1 == cuts_.tiles + tile_count_ || row_at(cuts_.order[tile.last]).request != works[0].row.request;
  finish_tile(slot_number, works, seed_count, last_of_request);
}

void Run::finish_tile(std::size_t slot_number, std::span<RowWork> works, std::int64_t& seed_count,
                      bool last_of_request) {
  SlotMemory& slot = slots_[slot_number];
  std::int64_t votes = 0;
  // Where best first finds the threshold, seeds only tell which heads winners activate: one row's winners do.
  const bool elect = last_of_request || !state_.options.ablation.best_first;
  const auto voters = elect ? std::min(kVotingRows, static_cast<std::int64_t>(works.size())) : 1;
  for (const RowWork& work : works.last(static_cast<std::size_t>(voters)))
    for (std::int64_t j = 0; j < work.selected; ++j) slot.votes[votes++] = work.memory.entries[j].index;
  if (votes > 0)
    seed_count = elect_seeds({slot.votes, static_cast<std::size_t>(votes)}, plan_.seed_capacity, slot.seeds);
  if (last_of_request) carry_.write(works[0].row.request, {slot.seeds, static_cast<std::size_t>(seed_count)});
  for (RowWork& work : works) {
    write_row(problem_, state_.options, work.row, {work.memory.entries, static_cast<std::size_t>(work.selected)},
              selection_);
    count_row(work, counters_[slot_number]);
  }
}

void Run::count_row(const RowWork& work, Stats& counters) {
  const RowReport& report = work.report;
  counters.rows += 1;
  (work.screen == Screen::model  ? counters.rows_model
   : work.screen == Screen::dosa ? counters.rows_dosa
                                 : counters.rows_dense) += 1;
  counters.rows_rescreened += report.rescreened ? 1 : 0;
  counters.visible += report.visible;
  counters.survivors += report.survivors;
  counters.exact += report.exact;
  counters.dot_products += report.dot_products;  // whole numbers: their sum does not depend on the order
  counters.dense_dot_products += static_cast<double>(work.visible()) * plan_.layout.heads;
  if (!stats_.row_reports.empty()) stats_.row_reports[static_cast<std::size_t>(work.row.row)] = report;
}

void run_cpu(const PlanState& state, const Problem& problem, const Selection& selection, std::span<std::byte> workspace,
             Carry carry, Stats& stats) {
  Run(state, problem, selection, workspace, carry, stats).execute();
}

void scores_cpu(const PlanState& state, const Problem& problem, TensorView<float, 2> out) {
  const Kernels& kernels = *choose(state.options.isa).kernels;
  const Shape& shape = state.shape;
  const std::size_t row_bytes =
      kernels.model_bytes(state.options.model, static_cast<int>(shape.heads), static_cast<int>(shape.head_dim));
  const auto score_row = [&](std::int64_t t) {
    const FloatEnvironment environment;
    const Row row = make_row(problem, shape, state.options, t);
    const Window visible = row.visible();
    for (std::int64_t i = 0; i < shape.keys; ++i)
      if (!row.visible(i)) *out.at(t, i) = -std::numeric_limits<float>::infinity();
    if (visible.size() == 0) return;
    const auto memory = std::make_unique<std::byte[]>(row_bytes + Arena::kAlignment);
    Arena cut(memory.get());
    auto* const model_row = cut.take<std::byte>(static_cast<std::int64_t>(row_bytes));
    kernels.model_row(state.options.model, row.score, model_row);
    const KeySource keys = key_source(problem, row.request);
    float block[kModelBlock];
    for (std::int64_t first = visible.first; first < visible.last; first += kModelBlock) {
      const std::int64_t count = std::min(kModelBlock, visible.last - first);
      kernels.model_scores(state.options.model, row.score, model_row, keys, nullptr, first, count, block);
      for (std::int64_t j = 0; j < count; ++j) *out.at(t, first + j) = block[j];
    }
  };
  const bool alone = pool_was_lost();
  on_threads(state.options.threads, alone, [&] {
    if (!alone) return tbb::parallel_for(std::int64_t{0}, shape.rows, score_row);
    for (std::int64_t t = 0; t < shape.rows; ++t) score_row(t);
  });
}

}  // namespace

const BackendTable& cpu_backend() noexcept {
  static constexpr BackendTable kTable{Backend::cpu, plan_cpu, run_cpu, scores_cpu};
  return kTable;
}

}  // namespace dosa::detail
