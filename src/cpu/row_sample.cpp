#include "cpu/row_sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "select/predicted_threshold.hpp"

namespace dosa::cpu {
std::span<const std::int32_t> visible_seeds(const TileContext& tile, const RowWork& work) {
  const auto first = std::lower_bound(tile.seeds.begin(), tile.seeds.end(), work.row.free.first);
  return {first, std::lower_bound(first, tile.seeds.end(), work.row.free.last)};
}

void random_keys(const Window& window, std::int64_t count, std::uint64_t hash, std::int32_t* keys) {
  const std::int64_t n = window.size();
  std::int64_t first = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    hash ^= hash << 13U;
    hash ^= hash >> 7U;
    hash ^= hash << 17U;
    const std::int64_t last = (j + 1) * n / count;
    const auto width = static_cast<std::uint64_t>(std::max<std::int64_t>(1, last - first));
    keys[j] = static_cast<std::int32_t>(window.first + first + static_cast<std::int64_t>((hash >> 32U) * width >> 32U));
    first = last;
  }
}

certificate::Sample choose_sample(const TileContext& tile, ThreadMemory& thread, const RowWork& work) {
  std::int32_t* const keys = thread.sample_keys;
  int count = 0;
  if (tile.options->ablation.seeds) {
    const std::span<const std::int32_t> seeds = visible_seeds(tile, work);
    const auto inside = static_cast<std::int64_t>(seeds.size());
    const std::int64_t wanted = std::min<std::int64_t>(kSeedSample, inside);
    for (std::int64_t j = 0; j < wanted; ++j) keys[count++] = seeds[static_cast<std::size_t>(j * inside / wanted)];
  }
  const int likely = count;
  random_keys(work.row.free, kRandomSample, kSampleHash, keys + count);
  count += kRandomSample;

  certificate::Sample sample;
  sample.keys = count;
  sample.likely_winners = likely;
  sample.stride = kSampleStride;
  sample.winners = static_cast<double>(work.slots) / static_cast<double>(work.visible());
  return sample;
}

void measure_sample(const TileContext& tile, ThreadMemory& thread, RowWork& work, certificate::Sample& sample) {
  const Layout& layout = *tile.layout;
  const Kernels& kernels = *layout.kernels;
  const std::int32_t* const keys = thread.sample_keys;
  const int count = sample.keys;
  float* const scale = thread.sample_numbers;
  float* const norm = scale + sample.stride;
  float* const centred = norm + sample.stride;
  Panel& panel = thread.panel;
  fetch_keys(tile.keys, keys, 0, count);
  for (int first = 0; first < count; first += kernels.panel_keys) {
    const int block = std::min(kernels.panel_keys, count - first);
    kernels.pack(tile.keys, keys + first, 0, block, tile.pack, panel);
    kernels.dots(work.dense, layout.heads, panel, thread.panel_dots);
    const auto bytes = static_cast<std::size_t>(block) * sizeof(float);
    for (int h = 0; h < layout.heads; ++h)
      std::memcpy(thread.sample_dots + std::int64_t{h} * sample.stride + first,
                  thread.panel_dots + std::int64_t{h} * kernels.panel_keys, bytes);
    for (int i = 0; i < block; ++i) {
      float allowance = work.dense.constant;
      for (int f = 0; f < panel.feature_count; ++f)
        allowance += work.dense.allow[f] * panel.features[f * kernels.panel_keys + i];
      thread.sample_allowances[first + i] = allowance;
    }
    std::memcpy(scale + first, panel.scale, bytes);
    std::memcpy(norm + first, panel.features + kNorm * kernels.panel_keys, bytes);
    std::memcpy(centred + first, panel.features + kCentred * kernels.panel_keys, bytes);
  }
  sample.dots = thread.sample_dots;
  sample.scale = scale;
  sample.norm = norm;
  sample.centred = centred;
  work.report.dot_products += static_cast<double>(count) * layout.heads;
}

namespace {

/// Gathered keys' sums have another order than the screen's, and all keys of a plateau one bound: what the two may
/// differ by must not put the floor above it. (Bounds keep some distance from sums, too.)
void step_back(float* lower, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) lower[j] -= std::fabs(lower[j]) * 0x1p-22F;
}

/// Lower bounds of a measured sample's keys, from the sums of their dots: at least as far from what a screen finds.
void lower_bounds(const TileContext& tile, ThreadMemory& thread, const RowWork& work,
                  const certificate::Sample& sample) {
  const Kernels& kernels = *tile.layout->kernels;
  float* const scores = thread.sample_scores;
  float* const lost = thread.sample_allowances;
  const float rounding = static_cast<float>(tile.layout->heads + 8) * 0x1p-23F;
  std::fill(scores, scores + sample.keys, 0.0F);
  for (int h = 0; h < tile.layout->heads; ++h) {
    const float weight = work.row.score.weights[h * work.row.score.weight_stride];
    const float* const dots = sample.dots + std::int64_t{h} * sample.stride;
    kernels.loops.add_relu(scores, dots, weight, sample.keys);
    kernels.loops.add_relu(lost, dots, std::fabs(weight) * rounding, sample.keys);
  }
  for (int s = 0; s < sample.keys; ++s) {
    const float bound = sample.scale[s] * (scores[s] - lost[s]);
    const bool bounded = sample.scale[s] <= work.dense.scale_limit;  // others have no lower bound
    scores[s] = bounded ? bound - (std::fabs(bound) * 0x1p-20F + 0x1p-140F) : -std::numeric_limits<float>::infinity();
  }
}

/// Scores of the keys (ascending) that are seeds become -inf.
void leave_out(std::span<const std::int32_t> seeds, std::span<const std::int32_t> keys, float* scores) {
  auto seed = seeds.begin();
  for (std::size_t j = 0; j < keys.size(); ++j) {
    while (seed != seeds.end() && *seed < keys[j]) ++seed;
    if (seed != seeds.end() && *seed == keys[j]) scores[j] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

float predict_threshold(const TileContext& tile, ThreadMemory& thread, RowWork& work,
                        const certificate::Sample& sample) {
  const Kernels& kernels = *tile.layout->kernels;
  // Lower bounds, as the threshold will be one: where scores cancel they lie far below.
  float* const scores = thread.sample_scores;
  if (sample.dots != nullptr) {
    lower_bounds(tile, thread, work, sample);
  } else {
    refine(tile, thread, work, thread.sample_keys, sample.keys, scores, thread.sample_allowances);
    step_back(scores, sample.keys);
  }

  const std::int64_t n = work.visible();
  const std::int64_t more = std::max<std::int64_t>(0, n / kPredictionStride - kRandomSample);
  std::int32_t* const more_keys = work.memory.list;
  random_keys(work.row.free, more, kMoreKeysHash, more_keys);
  refine(tile, thread, work, more_keys, more, work.memory.lower, work.memory.upper);
  step_back(work.memory.lower, more);

  // Two strata: seeds, each standing for a few of them, and random keys that are no seeds, each for many others.
  const std::span<const std::int32_t> seeds = visible_seeds(tile, work);
  const int likely = sample.likely_winners;
  const double outside = static_cast<double>(n) - (likely == 0 ? 0.0 : static_cast<double>(seeds.size()));
  const auto random = static_cast<double>(sample.keys - likely + more);
  const auto weight = static_cast<float>(outside / random);
  if (likely > 0) {
    leave_out(seeds, {thread.sample_keys + likely, static_cast<std::size_t>(sample.keys - likely)}, scores + likely);
    leave_out(seeds, {more_keys, static_cast<std::size_t>(more)}, work.memory.lower);
  }
  float* end = thread.predicted;
  const auto add_finite = [&](const float* from, std::int64_t count) {
    end += kernels.values_between(from, count, std::numeric_limits<float>::lowest(),
                                  std::numeric_limits<float>::infinity(), end);
  };
  add_finite(scores, likely);
  float* const first_random = end;
  add_finite(scores + likely, sample.keys - likely);
  add_finite(work.memory.lower, more);
  const float seed_weight = likely == 0 ? 0 : static_cast<float>(seeds.size()) / static_cast<float>(likely);
  const std::array<Stratum, 2> strata{Stratum{{thread.predicted, first_random}, seed_weight},
                                      Stratum{{first_random, end}, weight}};
  return predicted_threshold(kernels, strata, static_cast<double>(work.slots));
}

void refine(const TileContext& tile, ThreadMemory& thread, RowWork& work, const std::int32_t* keys, std::int64_t count,
            float* lower, float* upper) {
  const Kernels& kernels = *tile.layout->kernels;
  work.report.dot_products += static_cast<double>(count) * tile.layout->heads;
  if (kernels.gathered_bounds != nullptr)
    return kernels.gathered_bounds(work.dense, tile.keys, keys, count, lower, upper);
  float* const panel_lower = thread.block_scores;
  float* const panel_upper = panel_lower + 64;
  Panel& panel = thread.panel;
  fetch_keys(tile.keys, keys, 0, std::min<std::int64_t>(kernels.panel_keys, count));
  for (std::int64_t first = 0; first < count; first += kernels.panel_keys) {
    const auto block = static_cast<int>(std::min<std::int64_t>(kernels.panel_keys, count - first));
    kernels.pack(tile.keys, keys + first, 0, block, {tile.options->model, nullptr}, panel);  // no row asks for a mean
    const std::int64_t next = first + kernels.panel_keys;
    fetch_keys(tile.keys, keys + next, 0, std::min<std::int64_t>(kernels.panel_keys, count - next));
    kernels.bounds(work.dense, panel, panel_lower, panel_upper);
    std::memcpy(lower + first, panel_lower, static_cast<std::size_t>(block) * sizeof(float));
    std::memcpy(upper + first, panel_upper, static_cast<std::size_t>(block) * sizeof(float));
  }
}

}  // namespace dosa::cpu
