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

/// A problem of any shape, contiguous or paged, and what it is called.
struct Drawn {
  workloads::Workload made;
  std::string what;
  bool paged;
};
inline Drawn drawn_problem(workloads::Random& random, const char* section, long round, std::int64_t most_rows,
                           std::int64_t most_keys) {
  constexpr int kHeads[] = {1, 4, 8, 16, 24, 32, 32, 40, 48, 64, 64, 96, 128};
  constexpr int kDims[] = {32, 64, 96, 128, 128, 128, 160, 192, 224, 256};
  constexpr int kTopK[] = {1, 2, 64, 512, 1024, 2047, 2048, 2049, 4096};
  constexpr int kPage[] = {1, 2, 16, 32, 64, 64, 128, 256};
  workloads::Size size;
  size.rows = random.below(most_rows) + 1;
  size.keys = random.chance(0.3) ? random.below(300) + 1 : random.below(most_keys) + 1;
  size.heads = kHeads[random.below(std::size(kHeads))];
  size.head_dim = kDims[random.below(std::size(kDims))];
  size.top_k = kTopK[random.below(std::size(kTopK))];
  size.seed = random.bits();
  workloads::Recipe recipe;
  if (random.chance(0.6)) {
    recipe.q = static_cast<workloads::Codes>(random.below(10));
    recipe.k = static_cast<workloads::Codes>(random.below(10));
    recipe.scales = static_cast<workloads::Scales>(random.below(7));
    recipe.weights = static_cast<workloads::Weights>(random.below(8));
  }
  Drawn drawn{workloads::mix(size, recipe),
              text::format("{} {}: Q {} N {} H {} D {} codes {}/{} scales {} weights {}", section, round, size.rows,
                           size.keys, size.heads, size.head_dim, static_cast<int>(recipe.q), static_cast<int>(recipe.k),
                           static_cast<int>(recipe.scales), static_cast<int>(recipe.weights)),
              random.chance(0.4)};
  drawn.made.top_k = size.top_k;
  if (drawn.paged) {
    const int page = kPage[random.below(std::size(kPage))];
    const std::int64_t gap = 4 * random.below(9);
    drawn.made = workloads::paged(drawn.made, page, gap, true, random.bits());
    drawn.what += text::format(" pages of {} gap {}", page, gap);
  }
  return drawn;
}
inline std::string described(const Options& options) {
  return text::format(" K {} order {} base {}", options.top_k, name(options.order), name(options.index_base));
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
