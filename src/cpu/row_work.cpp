#include "cpu/row_work.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "certificate/dosa_bound.hpp"
#include "select/exact_selector.hpp"
#include "select/interval_selection.hpp"

namespace dosa::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Below this a sample of 256 keys costs more than it can save.
constexpr std::int64_t kShortWindow = 4096;
// A certified row must promise a gain that survives the sample's noise: a wrong guess costs a second, dense pass.
constexpr double kWorthwhile = 0.9;
// Best first refines this many times K keys with the largest bounds; the K-th largest of their lower bounds is the
// threshold (T9 a).
constexpr double kBestFirst = 1.5;

class Worker {
 public:
  Worker(const TileContext& tile, ThreadMemory& thread, RowWork& work)
      : tile_(tile),
        layout_(*tile.layout),
        kernels_(*layout_.kernels),
        options_(*tile.options),
        thread_(thread),
        work_(work),
        offset_(work.row.free.first - tile.first_key),
        upper_(work.memory.upper + offset_),
        lower_(work.memory.lower + offset_) {}

  void prepare();
  void finish(bool scores_needed);

 private:
  [[nodiscard]] std::int64_t visible() const noexcept { return work_.visible(); }
  [[nodiscard]] double heads() const noexcept { return layout_.heads; }

  [[nodiscard]] certificate::RowInput row_input() const;
  bool make_dense();
  void choose_path();
  certificate::Choice make_dosa();
  certificate::Sample take_sample();

  float kth(const float* values, std::int64_t count, std::int64_t k) {
    return kth_largest(kernels_, {values, static_cast<std::size_t>(count)}, k, *thread_.kth);
  }
  void refine(const std::int32_t* keys, std::int64_t count, float* lower, float* upper);
  void dense_over_window();
  std::int64_t dense_candidates();
  std::int64_t dosa_candidates();
  std::int64_t seeded_threshold(float& threshold);
  void resolve(std::int64_t candidates, bool scores_needed);
  void model_row();
  void merge_runs(std::int64_t certain);
  void note_last_score();
  template <class Push>
  void score_under_model(const std::int32_t* keys, std::int64_t first, std::int64_t count, const Push& push);

  const TileContext& tile_;
  const Layout& layout_;
  const Kernels& kernels_;
  const Options& options_;
  ThreadMemory& thread_;
  RowWork& work_;
  std::int64_t offset_;
  float* upper_;
  float* lower_;
  bool model_row_ready_ = false;
};

certificate::RowInput Worker::row_input() const {
  certificate::RowInput input;
  input.row = work_.row.score;
  input.model = options_.model;
  input.arithmetic = kernels_.arithmetic(layout_.head_dim);
  input.mean = tile_.pack.mean;
  input.ablation = options_.ablation;
  input.retained_heads = options_.retained_heads;
  input.refine_cost = kernels_.costs.refine;
  return input;
}

bool Worker::make_dense() {
  FormSpec spec;
  if (!certificate::dense_form(row_input(), thread_.rows, thread_.coef, spec)) return false;
  work_.dense = kernels_.make_form(spec, options_.model, work_.memory.dense_form);
  return true;
}

// Stratified positions with a fixed hash as jitter: no period of the text can hide from it, and every run takes the
// same.
certificate::Sample Worker::take_sample() {
  const std::int64_t n = visible();
  std::int32_t* const keys = thread_.sample_keys;
  int count = 0;
  if (options_.ablation.seeds) {
    const auto& seeds = tile_.seeds;
    const auto inside_first = std::lower_bound(seeds.begin(), seeds.end(), work_.row.free.first);
    const auto inside_last = std::lower_bound(inside_first, seeds.end(), work_.row.free.last);
    const std::int64_t inside = inside_last - inside_first;
    const std::int64_t wanted = std::min<std::int64_t>(kSeedSample, inside);
    for (std::int64_t j = 0; j < wanted; ++j) keys[count++] = inside_first[j * inside / wanted];
  }
  const int likely = count;
  std::uint64_t hash = 0x9e3779b97f4a7c15U;
  for (std::int64_t j = 0; j < kRandomSample; ++j) {
    hash ^= hash << 13U;
    hash ^= hash >> 7U;
    hash ^= hash << 17U;
    const std::int64_t first = j * n / kRandomSample, last = (j + 1) * n / kRandomSample;
    const auto width = static_cast<std::uint64_t>(std::max<std::int64_t>(1, last - first));
    keys[count++] = static_cast<std::int32_t>(work_.row.free.first + first + static_cast<std::int64_t>(hash % width));
  }

  certificate::Sample sample;
  sample.keys = count;
  sample.likely_winners = likely;
  sample.stride = (kSampleKeys + 63) / 64 * 64 + 64;
  sample.winners = static_cast<double>(work_.slots) / static_cast<double>(n);
  float* const scale = thread_.sample_numbers;
  float* const norm = scale + sample.stride;
  float* const centred = norm + sample.stride;
  Panel& panel = thread_.panel;
  for (int first = 0; first < count; first += kernels_.panel_keys) {
    const int block = std::min(kernels_.panel_keys, count - first);
    kernels_.pack(tile_.keys, keys + first, 0, block, tile_.pack, panel);
    kernels_.dots(work_.dense, layout_.heads, panel, thread_.panel_dots);
    const auto bytes = static_cast<std::size_t>(block) * sizeof(float);
    for (int h = 0; h < layout_.heads; ++h)
      std::memcpy(thread_.sample_dots + std::int64_t{h} * sample.stride + first,
                  thread_.panel_dots + std::int64_t{h} * kernels_.panel_keys, bytes);
    std::memcpy(scale + first, panel.scale, bytes);
    std::memcpy(norm + first, panel.features + kNorm * kernels_.panel_keys, bytes);
    std::memcpy(centred + first, panel.features + kCentred * kernels_.panel_keys, bytes);
  }
  sample.dots = thread_.sample_dots;
  sample.scale = scale;
  sample.norm = norm;
  sample.centred = centred;
  work_.report.dot_products += count * heads();
  return sample;
}

certificate::Choice Worker::make_dosa() {
  certificate::RowInput input = row_input();
  input.sample = take_sample();
  FormSpec spec;
  const certificate::Choice choice =
      certificate::dosa_form(input, {thread_.certificate, thread_.certificate_bytes}, thread_.rows, thread_.coef, spec);
  if (choice.finite) work_.dosa = kernels_.make_form(spec, options_.model, work_.memory.dosa_form);
  return choice;
}

void Worker::choose_path() {
  RowReport& report = work_.report;
  work_.screen = Screen::dense;
  report.retained_heads = layout_.heads;
  if (visible() <= work_.slots) {
    report.reason = RowReason::all_selected;
    return;
  }
  if (options_.path == Path::dense) return;
  const double winners = static_cast<double>(work_.slots) / static_cast<double>(visible());
  if (options_.path == Path::automatic) {
    report.reason = visible() < kShortWindow ? RowReason::short_window : RowReason::no_gain;
    if (visible() < kShortWindow || !certificate::may_profit(work_.row.score, winners, kernels_.costs)) return;
  }
  const certificate::Choice choice = make_dosa();
  if (!choice.finite) {
    report.reason = RowReason::not_finite;
    return;
  }
  if (options_.path == Path::automatic) {
    if (choice.cost + kernels_.costs.key > kWorthwhile) return;
    report.reason = RowReason::measured;
  }
  work_.screen = Screen::dosa;
  report.path = Path::dosa;
  report.retained_heads = choice.retained;
  report.aggregates = choice.aggregates;
}

void Worker::prepare() {
  work_.report = {};
  work_.report.visible = visible() + work_.row.forced();
  work_.report.last_score = std::numeric_limits<float>::quiet_NaN();
  work_.report.first_threshold = work_.report.threshold = -kInfinity;
  work_.selected = 0;
  work_.slots = work_.row.free_slots(options_.top_k);
  work_.screen = Screen::none;
  if (work_.slots == 0) return;
  if (!make_dense()) {
    work_.screen = Screen::model;
    work_.report.reason = RowReason::not_finite;
    return;
  }
  choose_path();
}

void Worker::refine(const std::int32_t* keys, std::int64_t count, float* lower, float* upper) {
  float* const panel_lower = thread_.block_scores;
  float* const panel_upper = panel_lower + 64;
  Panel& panel = thread_.panel;
  for (std::int64_t first = 0; first < count; first += kernels_.panel_keys) {
    const auto block = static_cast<int>(std::min<std::int64_t>(kernels_.panel_keys, count - first));
    kernels_.pack(tile_.keys, keys + first, 0, block, tile_.pack, panel);
    kernels_.bounds(work_.dense, panel, panel_lower, panel_upper);
    std::memcpy(lower + first, panel_lower, static_cast<std::size_t>(block) * sizeof(float));
    std::memcpy(upper + first, panel_upper, static_cast<std::size_t>(block) * sizeof(float));
  }
  work_.report.dot_products += static_cast<double>(count) * heads();
}

// Leaves candidates in list, their bounds compact in lower_, upper_.
std::int64_t Worker::dense_candidates() {
  const std::int64_t n = visible();
  work_.report.survivors = n;
  work_.report.dot_products += static_cast<double>(n) * heads();
  float threshold = -kInfinity;
  if (work_.slots < n) threshold = kth(lower_, n, work_.slots);
  work_.report.threshold = threshold;
  std::int32_t* const list = work_.memory.list;
  const auto base = static_cast<std::int32_t>(work_.row.free.first);
  const std::int64_t found = kernels_.compress_not_below(upper_, n, threshold, base, list);
  for (std::int64_t j = 0; j < found; ++j) {
    upper_[j] = upper_[list[j] - base];
    lower_[j] = lower_[list[j] - base];
  }
  return found;
}

void Worker::dense_over_window() {
  for (std::int64_t first = work_.row.free.first; first < work_.row.free.last; first += kernels_.panel_keys) {
    const auto block = static_cast<int>(std::min<std::int64_t>(kernels_.panel_keys, work_.row.free.last - first));
    kernels_.pack(tile_.keys, nullptr, first, block, tile_.pack, thread_.panel);
    screen_panel(tile_, thread_.panel, first, {&work_, 1});
  }
}

// tau from seeds alone: the K-th largest proven lower bound of at least K distinct visible keys (T9 a).
std::int64_t Worker::seeded_threshold(float& threshold) {
  const auto inside_first = std::lower_bound(tile_.seeds.begin(), tile_.seeds.end(), work_.row.free.first);
  const auto inside_last = std::lower_bound(inside_first, tile_.seeds.end(), work_.row.free.last);
  const std::int64_t count = std::min<std::int64_t>(inside_last - inside_first, visible() / 2);
  work_.report.seeds = count;
  if (count < work_.slots) return 0;
  float* const upper = lower_ + visible() / 2;  // scratch: the bounds themselves are wanted for the threshold alone
  refine(&*inside_first, count, lower_, upper);
  threshold = kth(lower_, count, work_.slots);
  return count;
}

// Survivors of the certificate: refined bounds compact in lower_, upper_ (list ascending in two runs). -1: too many.
std::int64_t Worker::dosa_candidates() {
  const std::int64_t n = visible();
  const auto base = static_cast<std::int32_t>(work_.row.free.first);
  RowReport& report = work_.report;
  report.dot_products += static_cast<double>(n) * (report.retained_heads + report.aggregates);
  std::int32_t* const list = work_.memory.list;
  // Refined bounds of up to n / 2 survivors fit beside the screen's own bounds: lower in the first half, upper in the
  // second.
  const std::int64_t room = n / 2;
  float* const lower = lower_;
  float* const upper = lower_ + room;

  float threshold = -kInfinity;
  if (options_.ablation.seeds && !options_.ablation.best_first && !tile_.seeds.empty())
    (void)seeded_threshold(threshold);
  report.first_threshold = threshold;

  std::int64_t count = 0;
  bool scored_first = false;
  float scored_from = kInfinity;
  if (options_.ablation.best_first || threshold == -kInfinity) {
    const auto wanted =
        std::min<std::int64_t>(n, static_cast<std::int64_t>(std::ceil(kBestFirst * static_cast<double>(work_.slots))));
    scored_from = kth(upper_, n, wanted);
    if (kernels_.count_not_below(upper_, n, scored_from) > room) return -1;
    count = kernels_.compress_not_below(upper_, n, scored_from, base, list);
    refine(list, count, lower, upper);
    scored_first = true;
    threshold = std::max(threshold, kth(lower, count, work_.slots));
  }
  report.threshold = threshold;

  const std::int64_t survivors = kernels_.count_not_below(upper_, n, threshold);
  if (std::max(survivors, count) > room) return -1;
  if (!scored_first || threshold < scored_from) {
    std::int32_t* const rest = list + count;
    const std::int64_t found = kernels_.compress_not_below(upper_, n, threshold, base, rest);
    std::int64_t kept = 0;
    for (std::int64_t j = 0; j < found; ++j)
      if (!scored_first || upper_[rest[j] - base] < scored_from) rest[kept++] = rest[j];
    refine(rest, kept, lower + count, upper + count);
    count += kept;
  }
  report.survivors = count;
  std::memcpy(upper_, upper, static_cast<std::size_t>(count) * sizeof(float));
  return count;
}

template <class Push>
void Worker::score_under_model(const std::int32_t* keys, std::int64_t first, std::int64_t count, const Push& push) {
  if (count == 0) return;
  if (!model_row_ready_) kernels_.model_row(options_.model, work_.row.score, thread_.model_row);
  model_row_ready_ = true;
  for (std::int64_t done = 0; done < count; done += kModelBlock) {
    const std::int64_t block = std::min(kModelBlock, count - done);
    kernels_.model_scores(options_.model, work_.row.score, thread_.model_row, tile_.keys,
                          keys == nullptr ? nullptr : keys + done, first + done, block, thread_.block_scores);
    for (std::int64_t j = 0; j < block; ++j) push(done + j, thread_.block_scores[j]);
  }
  work_.report.exact += count;
}

// T10: accept, reject, score the others under the model.
void Worker::resolve(std::int64_t candidates, bool scores_needed) {
  std::int32_t* const list = work_.memory.list;
  Entry* const entries = work_.memory.entries;
  const float certain_above = candidates > work_.slots ? kth(upper_, candidates, work_.slots + 1) : -kInfinity;
  const float certain_below = candidates > work_.slots ? kth(lower_, candidates, work_.slots) : -kInfinity;
  const auto [certain, open] =
      decide({lower_, upper_, list, candidates}, work_.slots, certain_above, certain_below, entries);
  const std::int64_t left = work_.slots - certain;
  ExactSelector selector({entries + certain, static_cast<std::size_t>(ExactSelector::buffer_entries(left))}, left);
  if (left > 0)
    score_under_model(list, 0, open, [&](std::int64_t j, float value) {
      if (selectable(value)) selector.push({value, list[j]});
    });
  const std::span<Entry> chosen = selector.finish();
  work_.selected = certain + static_cast<std::int64_t>(chosen.size());
  if (!scores_needed) return merge_runs(certain);
  for (std::int64_t j = 0; j < certain; ++j) list[j] = entries[j].index;
  score_under_model(list, 0, certain, [&](std::int64_t j, float value) { entries[j].score = value; });
  note_last_score();
}

// Sorting by index, as the writer wants it, costs three percent of a certified row at K = 2048; the entries are a few
// ascending runs already.
void Worker::merge_runs(std::int64_t certain) {
  const auto by_index = [](const Entry& a, const Entry& b) { return a.index < b.index; };
  Entry* const first = work_.memory.entries;
  Entry* const middle = first + certain;
  Entry* const last = first + work_.selected;
  Entry* const second = std::is_sorted_until(first, middle, by_index);
  if (!std::is_sorted(second, middle, by_index)) return std::sort(first, last, by_index);
  std::sort(middle, last, by_index);
  Entry* const spare = last;  // the selector's buffer has room for certain more
  std::merge(first, second, second, middle, spare, by_index);
  Entry *from_spare = spare, *from_open = middle, *to = first;
  // The write position trails both read positions, so merging back in place loses nothing.
  while (from_open != last && from_spare != spare + certain)
    *to++ = by_index(*from_open, *from_spare) ? *from_open++ : *from_spare++;
  std::copy(from_spare, spare + certain, to);
}

void Worker::note_last_score() {
  const std::span<const Entry> entries{work_.memory.entries, static_cast<std::size_t>(work_.selected)};
  const auto last = std::max_element(entries.begin(), entries.end(), before);
  if (last != entries.end()) work_.report.last_score = last->score;
}

void Worker::model_row() {
  const std::int64_t slots = work_.slots;
  ExactSelector selector({work_.memory.entries, static_cast<std::size_t>(ExactSelector::buffer_entries(slots))}, slots);
  const std::int64_t first = work_.row.free.first;
  score_under_model(nullptr, first, visible(), [&](std::int64_t j, float value) {
    if (selectable(value)) selector.push({value, static_cast<std::int32_t>(first + j)});
  });
  work_.selected = static_cast<std::int64_t>(selector.finish().size());
  note_last_score();
  work_.report.survivors = visible();
  work_.report.retained_heads = layout_.heads;
  work_.report.dot_products += static_cast<double>(visible()) * heads();
}

void Worker::finish(bool scores_needed) {
  if (work_.screen == Screen::none) return;
  if (work_.screen == Screen::model) return model_row();
  std::int64_t candidates = -1;
  if (work_.screen == Screen::dosa) {
    candidates = dosa_candidates();
    if (candidates < 0) {
      work_.screen = Screen::dense;
      work_.report.path = Path::dense;
      work_.report.reason = RowReason::too_many_survivors;
      dense_over_window();
    }
  }
  if (candidates < 0) candidates = dense_candidates();
  resolve(candidates, scores_needed);
}

}  // namespace

std::atomic<RowObserver*> row_observer{nullptr};

void prepare_row(const TileContext& tile, ThreadMemory& thread, RowWork& work) { Worker(tile, thread, work).prepare(); }

void screen_panel(const TileContext& tile, const Panel& panel, std::int64_t panel_first, std::span<RowWork> works) {
  const Kernels& kernels = *tile.layout->kernels;
  const std::int64_t at = panel_first - tile.first_key;
  std::array<ScreenItem, 32> items;
  std::size_t count = 0;
  const auto flush = [&] {
    kernels.screen(items.data(), static_cast<int>(count), panel);
    count = 0;
  };
  for (RowWork& work : works) {
    if (panel_first >= work.row.free.last || panel_first + panel.count <= work.row.free.first) continue;
    if (work.screen == Screen::dense) {
      items[count++] = {&work.dense, work.memory.lower + at, work.memory.upper + at};
    } else if (work.screen == Screen::dosa) {
      items[count++] = {&work.dosa, nullptr, work.memory.upper + at};
    }
    if (count == items.size()) flush();
  }
  flush();
}

void finish_row(const TileContext& tile, ThreadMemory& thread, bool scores_needed, RowWork& work) {
  Worker(tile, thread, work).finish(scores_needed);
}

}  // namespace dosa::cpu
