// What the sections of device_check share, and the sections that have files of their own.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "contract/window.hpp"
#include "cuda/layout.hpp"
#include "cuda/staging.hpp"
#include "device_support.hpp"
#include "workloads/random.hpp"
#include "workloads/workloads.hpp"

namespace dosa::tools {

inline OwnedSelection on(const Problem& problem, Options options, Backend backend) {
  options.backend = backend;
  options.model = ScoreModel::sm90;
  return select(problem, options);
}

inline Options drawn_options(workloads::Random& random, std::int64_t top_k, bool paged) {
  Options options;
  options.top_k = random.chance(0.7) ? top_k : random.below(2 * top_k) + 1;
  options.top_k = std::min<std::int64_t>(options.top_k, cuda::kMaxTopK);
  options.order = random.chance(0.5) ? Order::index : Order::score;
  const std::int64_t base = random.below(paged ? 3 : 2);
  options.index_base = base == 0 ? IndexBase::absolute : base == 1 ? IndexBase::window : IndexBase::slot;
  options.scores = random.chance(0.6);
  if (random.chance(0.25)) options.always_first = random.below(40), options.always_last = random.below(70);
  return options;
}

/// Device-resident problem with its outputs, for streams and graphs.
struct Resident {
  explicit Resident(const Problem& host, Options asked)
      : staging({DeviceKind::cuda, 0}), problem(staging.upload(host)) {
    asked.backend = Backend::cuda;
    asked.model = ScoreModel::sm90;
    decided.emplace(plan(shape_of(problem), asked));
    const std::int64_t rows = problem.q.shape[0];
    result.rows = rows, result.top_k = asked.top_k;
    result.indices.resize(static_cast<std::size_t>(rows * asked.top_k));
    result.lengths.resize(static_cast<std::size_t>(rows));
    host_selection.indices = TensorView<std::int32_t, 2>::contiguous(result.indices.data(), {rows, asked.top_k});
    host_selection.lengths = TensorView<std::int32_t, 1>::contiguous(result.lengths.data(), {rows});
    if (asked.scores) {
      result.scores.resize(result.indices.size());
      host_selection.scores = TensorView<float, 2>::contiguous(result.scores.data(), {rows, asked.top_k});
    }
    selection = staging.outputs(host_selection);
    workspace = staging.allocate(decided->workspace_bytes());
  }
  void queue(cudaStream_t stream) {
    run_on_stream(*decided, problem, selection, workspace, decided->workspace_bytes(), stream);
  }
  const OwnedSelection& fetch() {
    staging.download(selection, host_selection);
    return result;
  }
  cuda::Staging staging;
  Problem problem;
  std::optional<Plan> decided;
  Selection selection, host_selection;
  OwnedSelection result;
  void* workspace = nullptr;
};

/// Every kernel choice of a check is made through this; the plan's own when it goes out of scope.
class Tuned {
 public:
  explicit Tuned(const cuda::Tuning& tuning) { cuda::tuning() = tuning; }
  ~Tuned() { cuda::tuning() = {}; }
  Tuned(const Tuned&) = delete;
  Tuned& operator=(const Tuned&) = delete;
};

/// dosa::merge of `parts` for the rows of `problem`.
inline OwnedSelection merged(std::span<const Partial> parts, const Problem& problem, const Options& options) {
  OwnedSelection result;
  const Shape shape = shape_of(problem);
  result.rows = shape.rows, result.top_k = options.top_k;
  result.indices.resize(static_cast<std::size_t>(shape.rows * options.top_k));
  result.lengths.resize(static_cast<std::size_t>(shape.rows));
  if (options.scores) result.scores.resize(result.indices.size());
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(result.indices.data(), {shape.rows, options.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(result.lengths.data(), {shape.rows});
  if (options.scores)
    selection.scores = TensorView<float, 2>::contiguous(result.scores.data(), {shape.rows, options.top_k});
  merge(parts, problem.ks, problem.ke, shape.keys, options, selection, std::get_if<PagedKeys>(&problem.keys),
        problem.row_request);
  return result;
}

/// The model's scores F32 [Q, N] by the CPU.
inline std::vector<float> scores_by_cpu(const Problem& problem) {
  const Shape shape = shape_of(problem);
  Options options;
  options.backend = Backend::cpu;
  options.model = ScoreModel::sm90;
  std::vector<float> all(static_cast<std::size_t>(shape.rows * shape.keys));
  scores(problem, options, TensorView<float, 2>::contiguous(all.data(), {shape.rows, shape.keys}));
  return all;
}

/// What the contract selects where only some keys exist: `exists(row, key, forced)`. Scores as scores_by_cpu gives
/// them.
template <class Exists>
OwnedSelection select_existing(const Problem& problem, const Options& options, const std::vector<float>& all,
                               Exists&& exists) {
  const Shape shape = shape_of(problem);
  const auto rows = static_cast<std::size_t>(shape.rows);
  std::vector<std::vector<std::int32_t>> keys(rows);
  std::vector<std::int32_t> lengths(rows);
  std::size_t width = 1;
  const auto window = [&](std::int64_t t) { return window_of(*problem.ks.at(t), *problem.ke.at(t), shape.keys); };
  const auto score = [&](std::int64_t t, std::int64_t key) {
    return all[static_cast<std::size_t>(t * shape.keys + key)];
  };
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const Forced forced = forced_of(window(t), options.always_first, options.always_last);
    auto& mine = keys[static_cast<std::size_t>(t)];
    for (std::int64_t key = forced.window.first; key < forced.window.last; ++key) {
      const bool is_forced = forced.contains(key);
      if (!exists(t, key, is_forced) || (!is_forced && std::isnan(score(t, key)))) continue;
      mine.push_back(static_cast<std::int32_t>(key));
    }
    lengths[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(mine.size());
    width = std::max(width, mine.size());
  }
  std::vector<std::int32_t> indices(rows * width, -1);
  std::vector<float> values(rows * width, 0);
  for (std::size_t t = 0; t < rows; ++t)
    for (std::size_t slot = 0; slot < keys[t].size(); ++slot) {
      indices[t * width + slot] = keys[t][slot];
      const float value = score(static_cast<std::int64_t>(t), keys[t][slot]);
      values[t * width + slot] = std::isnan(value) ? 0 : value;  // a forced key's score is never read
    }
  const auto columns = static_cast<std::int64_t>(width);
  const Partial part{TensorView<const std::int32_t, 2>::contiguous(indices.data(), {shape.rows, columns}),
                     TensorView<const std::int32_t, 1>::contiguous(lengths.data(), {shape.rows}),
                     TensorView<const float, 2>::contiguous(values.data(), {shape.rows, columns})};
  return merged({&part, 1}, problem, options);
}

/// Where the counters of the latest run with a workspace lie.
inline DeviceCounters counters_of(const void* workspace) {
  DeviceCounters counters{};
  const auto at = (reinterpret_cast<std::uintptr_t>(workspace) + 255) / 256 * 256;
  cuda::check(cudaMemcpy(&counters, reinterpret_cast<const void*>(at), sizeof counters, cudaMemcpyDeviceToHost),
              "counters");
  return counters;
}

void check_pairs(Tally& tally, double seconds, bool quick);
void check_shards(Tally& tally, double seconds);
void check_pages(Tally& tally, bool quick);
void check_full(Tally& tally, bool quick);
void check_adversarial(Tally& tally);

}  // namespace dosa::tools
