#include "call.hpp"

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "arguments.hpp"
#include "console.hpp"
#include "contract/text.hpp"

namespace dosa::app {
namespace {

template <class T, std::size_t Rank>
TensorView<T, Rank> slice(TensorView<T, Rank> view, std::int64_t first, std::int64_t count) {
  view.data += first * view.strides[0];
  view.shape[0] = count;
  return view;
}

OwnedSelection allocate(std::int64_t rows, const Options& options) {
  const double slots_wanted = static_cast<double>(rows) * static_cast<double>(options.top_k);
  check_memory(slots_wanted * (options.scores ? 8 : 4), text::format("results of [{},{}]", rows, options.top_k));
  OwnedSelection selection;
  selection.rows = rows;
  selection.top_k = options.top_k;
  const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(options.top_k);
  selection.indices.resize(slots);
  selection.lengths.resize(static_cast<std::size_t>(rows));
  if (options.scores) selection.scores.resize(slots);
  selection.stats.row_reports.resize(static_cast<std::size_t>(rows));
  return selection;
}

Selection view(OwnedSelection& owned, std::int64_t first, std::int64_t count) {
  const std::int64_t slot = first * owned.top_k;
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(owned.indices.data() + slot, {count, owned.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(owned.lengths.data() + first, {count});
  if (!owned.scores.empty()) {
    selection.scores = TensorView<float, 2>::contiguous(owned.scores.data() + slot, {count, owned.top_k});
  }
  return selection;
}

/// Workspace without zeroing: pages a call does not need are never touched.
struct Memory {
  std::size_t size = 0;
  std::unique_ptr<std::byte[]> data;
  std::span<std::byte> at_least(std::size_t bytes) {
    if (bytes > size) {
      data = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size = bytes;
    }
    return {data.get(), bytes};
  }
};

void run_rows(const Plan& decided, const Problem& problem, std::int64_t first, std::int64_t count, OwnedSelection& all,
              Memory& workspace, Carry carry, Stats& stats) {
  stats.row_reports.resize(static_cast<std::size_t>(count));
  run(decided, slice_rows(problem, first, count), view(all, first, count),
      workspace.at_least(decided.workspace_bytes()), carry, &stats);
  std::copy(stats.row_reports.begin(), stats.row_reports.end(), all.stats.row_reports.begin() + first);
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape.rows = rows;
  return shape;
}

}  // namespace

void add(Stats& total, const Stats& part) {
  total.rows += part.rows;
  total.rows_dense += part.rows_dense;
  total.rows_dosa += part.rows_dosa;
  total.rows_model += part.rows_model;
  total.rows_rescreened += part.rows_rescreened;
  total.visible += part.visible;
  total.survivors += part.survivors;
  total.exact += part.exact;
  total.dot_products += part.dot_products;
  total.dense_dot_products += part.dense_dot_products;
  total.seconds += part.seconds;
  if (!part.device) return;
  DeviceCounters& counters = total.device ? *total.device : total.device.emplace();
  counters.candidates += part.device->candidates;
  counters.compactions += part.device->compactions;
  counters.repeats += part.device->repeats;
  counters.sampled_rows += part.device->sampled_rows;
  counters.stages_tma += part.device->stages_tma;
  counters.stages_plain += part.device->stages_plain;
  counters.status |= part.device->status;
}

Problem slice_rows(const Problem& problem, std::int64_t first, std::int64_t count) {
  Problem part = problem;
  part.q = slice(problem.q, first, count);
  part.weights = slice(problem.weights, first, count);
  part.ks = slice(problem.ks, first, count);
  part.ke = slice(problem.ke, first, count);
  return part;
}

std::int64_t rows_per_batch(const Shape& shape, const Options& options) {
  const double row = static_cast<double>(std::max<std::int64_t>(shape.keys, 1)) * static_cast<double>(shape.heads) *
                     static_cast<double>(shape.head_dim);
  // Multiply-adds a second and thread, the order of magnitude: scalar model scores, vector arithmetic, tensor cores
  // (where a batch copies all keys to the device and many rows share them).
  const double rate = options.backend == Backend::reference ? 5e8 : options.backend == Backend::cuda ? 1e14 : 3e10;
  const double rows = rate * std::max(options.threads, 1) / row;
  // Neighbouring rows share seeds, and every thread should have several: short batches would cost more than they show.
  const std::int64_t least = options.backend == Backend::reference ? 1 : 16 * std::max(options.threads, 4);
  return std::clamp(static_cast<std::int64_t>(std::min(rows, 1e9)), least, std::max(shape.rows, least));
}

Call call_engine(const Problem& problem, const Options& options, const std::string& progress,
                 const std::function<void(const Call&, std::int64_t first, std::int64_t count)>& after_batch) {
  const Shape shape = shape_of(problem);
  const Plan whole = plan(shape, options);
  Call call{whole.options(), whole.why(), 0, allocate(shape.rows, options)};
  const std::int64_t batch = rows_per_batch(shape, call.options);
  Memory workspace;
  std::vector<std::byte> carry;
  Progress shown(progress, shape.rows);
  for (std::int64_t first = 0; first < shape.rows; first += batch) {
    const std::int64_t count = std::min(batch, shape.rows - first);
    const Plan decided = count == shape.rows ? whole : plan(with_rows(shape, count), options);
    if (count < shape.rows) carry.resize(std::max(carry.size(), decided.carry_bytes()));
    Stats stats;
    run_rows(decided, problem, first, count, call.selection, workspace, carry, stats);
    add(call.selection.stats, stats);
    call.workspace_bytes = std::max(call.workspace_bytes, decided.workspace_bytes());
    if (after_batch) after_batch(call, first, count);
    shown.update(first + count);
  }
  return call;
}

Call call_reference(const Problem& problem, const Options& options, int threads, const std::string& progress) {
  Options asked = options;
  asked.backend = Backend::reference;
  asked.isa = Isa::automatic;
  asked.path = Path::automatic;
  asked.threads = 0;
  const Shape shape = shape_of(problem);
  const Plan whole = plan(shape, asked);
  Call call{whole.options(), whole.why(), whole.workspace_bytes() * static_cast<std::size_t>(std::max(threads, 1)),
            allocate(shape.rows, asked)};
  const auto start = std::chrono::steady_clock::now();
  Progress shown(progress, shape.rows);
  const std::int64_t batch = rows_per_batch(with_rows(shape, shape.rows), whole.options()) * std::max(threads, 1);
  tbb::task_arena arena(own_threads(threads));
  for (std::int64_t first = 0; first < shape.rows; first += batch) {
    const std::int64_t count = std::min(batch, shape.rows - first);
    const Plan decided = plan(with_rows(shape, 1), asked);
    std::vector<Stats> stats(static_cast<std::size_t>(count));
    arena.execute([&] {
      tbb::parallel_for(std::int64_t{0}, count, [&](std::int64_t i) {
        Memory workspace;
        run_rows(decided, problem, first + i, 1, call.selection, workspace, {}, stats[static_cast<std::size_t>(i)]);
      });
    });
    for (const Stats& part : stats) add(call.selection.stats, part);
    shown.update(first + count);
  }
  call.selection.stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return call;
}

int own_threads(int asked) { return std::clamp(asked, 1, tbb::info::default_concurrency()); }

}  // namespace dosa::app
