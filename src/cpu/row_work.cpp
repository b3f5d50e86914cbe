#include "cpu/row_work.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "certificate/dosa_bound.hpp"
#include "cpu/row_sample.hpp"
#include "select/exact_selector.hpp"
#include "select/interval_selection.hpp"

namespace dosa::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

// Below this a sample of 256 keys costs more than it can save.
constexpr std::int64_t kShortWindow = 4096;
// A certified row must promise a gain that survives the sample's noise: a wrong guess costs a second, dense pass.
constexpr double kWorthwhile = 0.95;
// So many times the survivors that would take all of a certified row's gain may reach its floor: on the traces up to
// twice as many do, for the floor lies three deviations below the threshold. A row gives up at half of its keys; what a
// sample expects to come near to that may be more.
constexpr double kCrowd = 3, kMostKept = 0.5, kMostSurvivors = 0.3;
// A floor pays where most keys lie below it: the sample's noise alone doubles a share of winners of one in 32.
constexpr std::int64_t kPredictable = 8;
// Best first refines this many times K keys with the largest bounds; the K-th largest of their lower bounds is the
// threshold (T9 a).
constexpr double kBestFirst = 1.5;
// Where more than this many times the refined keys would survive, refining the next best raises the threshold first.
constexpr std::int64_t kRise = 2;

/// What the keys that a screen kept came to.
enum class Outcome : std::uint8_t {
  found,           ///< candidates hold every winner
  floor_too_high,  ///< keys below the floor may be winners; the report's threshold is proven
  no_room,         ///< the lists are too short to tell
  too_many,        ///< survivors: refining them costs more than a dense row
};
struct Found {
  Outcome outcome;
  std::int64_t candidates = 0;
  float below = kUnknown;  ///< the K-th largest lower bound of the candidates, where it is known
};

/// Merges two runs ascending by index. Which run is next is a coin's toss that a branch would miss every other time.
void merge_without_branches(const Entry* a, const Entry* a_end, const Entry* b, const Entry* b_end, Entry* to) {
  while (a != a_end && b != b_end) {
    const bool second = b->index < a->index;
    const Entry* const next = second ? b : a;
    *to++ = *next;
    b += second ? 1 : 0;
    a += second ? 0 : 1;
  }
  std::copy(b, b_end, std::copy(a, a_end, to));
}

class Worker {
 public:
  Worker(const TileContext& tile, ThreadMemory& thread, RowWork& work)
      : tile_(tile),
        layout_(*tile.layout),
        kernels_(*layout_.kernels),
        options_(*tile.options),
        thread_(thread),
        work_(work),
        upper_(work.memory.upper),
        lower_(work.memory.lower) {}

  void prepare();
  void list_round();
  void finish(bool scores_needed);

 private:
  [[nodiscard]] std::int64_t visible() const noexcept { return work_.visible(); }
  [[nodiscard]] double heads() const noexcept { return layout_.heads; }
  /// Dot products of the screen a key.
  [[nodiscard]] double rows_per_key() const noexcept {
    return work_.screen == Screen::dosa ? work_.report.retained_heads + work_.report.aggregates : heads();
  }

  [[nodiscard]] certificate::RowInput row_input() const;
  bool make_dense();
  void make_dense_screen();
  void choose_path();
  certificate::Choice make_dosa(const certificate::Sample& sample);

  float kth(const float* values, std::int64_t count, std::int64_t k) {
    return kth_largest(kernels_, {values, static_cast<std::size_t>(count)}, k, *thread_.kth);
  }
  void refine_keys(const std::int32_t* keys, std::int64_t count, float* lower, float* upper) {
    refine(tile_, thread_, work_, keys, count, lower, upper);
  }
  [[nodiscard]] float seeded_threshold();
  /// Keys that a row may refine in search of its threshold: twice what its choice expects to survive.
  [[nodiscard]] std::int64_t most_refined() const noexcept {
    return static_cast<std::int64_t>(2 * work_.expected_survival * static_cast<double>(visible()));
  }
  /// Once begun it goes on: the threshold found by it is no reason to stop.
  [[nodiscard]] bool best_first(const Refining& state) const noexcept {
    return options_.ablation.best_first || state.rounds > 0 || work_.report.threshold == -kInfinity;
  }
  [[nodiscard]] std::int64_t first_wanted() const noexcept {
    return static_cast<std::int64_t>(std::ceil(kBestFirst * static_cast<double>(work_.slots)));
  }
  float best_bound(std::int64_t wanted) { return kth(upper_, work_.kept, std::min(wanted, work_.kept)); }
  std::int64_t list_between(const RefinedKeys& place, std::int64_t count, float from, float to);
  bool threshold_settles(const RefinedKeys& place, std::int64_t wanted, Refining& state);
  Found keep_candidates(const Candidates& from, std::int64_t count, float proven);
  void refine_between(const float* lower, const float* upper, std::int64_t count, float low, float high);
  void refine_open(std::int64_t count);
  Found dense_candidates();
  Found dosa_candidates();
  Found find_candidates() { return work_.screen == Screen::dosa ? dosa_candidates() : dense_candidates(); }
  void resolve(const Found& found, bool scores_needed);
  void model_row();
  void merge_runs(std::int64_t certain);
  void note_last_score();
  void score_under_model(const std::int32_t* keys, std::int64_t first, std::int64_t count, float* scores);
  std::int64_t select_scored(std::int64_t count, std::int64_t wanted, Entry* chosen);

  const TileContext& tile_;
  const Layout& layout_;
  const Kernels& kernels_;
  const Options& options_;
  ThreadMemory& thread_;
  RowWork& work_;
  float* upper_;
  float* lower_;
  const certificate::Measured* measured_ = nullptr;  ///< in the thread's memory, while the row is prepared
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
  input.loops = &kernels_.loops;
  input.measured = measured_;
  if (kernels_.costs.narrow.block_rows > 0) {
    input.narrow = kernels_.costs.narrow;
    input.narrow_target = {thread_.narrow_rows, thread_.narrow_factors};
  }
  return input;
}

bool Worker::make_dense() {
  measured_ = certificate::measure(row_input(), {thread_.certificate, thread_.certificate_bytes});
  FormSpec spec;
  if (!certificate::dense_form(row_input(), thread_.rows, thread_.coef, spec)) return false;
  work_.dense = kernels_.make_form(spec, options_.model, work_.memory.dense_form);
  return true;
}

// All heads, as integers where there are tiles that multiply those at twice the rate: few keys are left about the
// threshold. A certificate that was weighed and not taken has left its own form.
void Worker::make_dense_screen() {
  work_.screened = work_.dense;
  if (visible() <= work_.slots || visible() < shortest_predicted.load(std::memory_order_relaxed)) return;
  const certificate::RowInput input = row_input();
  if (!certificate::wants_narrow(input)) return;
  FormSpec spec;
  if (!certificate::dense_form(input, thread_.rows, thread_.coef, spec, input.narrow_target)) return;
  work_.screened = kernels_.make_form(spec, options_.model, work_.memory.screened_form);
}

certificate::Choice Worker::make_dosa(const certificate::Sample& sample) {
  certificate::RowInput input = row_input();
  input.sample = sample;
  input.floor = work_.floor;
  FormSpec spec;
  const certificate::Choice choice =
      certificate::dosa_form(input, {thread_.certificate, thread_.certificate_bytes}, thread_.rows, thread_.coef, spec);
  if (choice.finite) work_.screened = kernels_.make_form(spec, options_.model, work_.memory.screened_form);
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
  bool certify = options_.path != Path::dense;
  if (options_.path == Path::automatic) {
    report.reason = visible() < kShortWindow ? RowReason::short_window : RowReason::no_gain;
    certify =
        visible() >= kShortWindow && certificate::may_profit(work_.row.score, visible(), work_.slots, kernels_.costs);
  }
  // An observer wants the bounds of all keys.
  const bool predict =
      options_.ablation.prediction && visible() >= shortest_predicted.load(std::memory_order_relaxed) &&
      visible() >= kPredictable * work_.slots && row_observer.load(std::memory_order_acquire) == nullptr;
  if (!certify && !predict) return;
  certificate::Sample sample = choose_sample(tile_, thread_, work_);
  if (certify) measure_sample(tile_, thread_, work_, sample);
  if (predict) work_.floor = predict_threshold(tile_, thread_, work_, sample);
  if (!certify) return;
  const certificate::Choice choice = make_dosa(sample);
  if (!choice.finite) {
    report.reason = RowReason::not_finite;
    return;
  }
  if (options_.path == Path::automatic) {
    if (choice.cost + kernels_.costs.key + kernels_.costs.row / static_cast<double>(visible()) > kWorthwhile) return;
    // Where a crowd of keys lies about the threshold, a sample cannot tell on which side of it.
    const double gain = 1 - choice.screen;
    if (predict && choice.kept > std::min(kCrowd * gain / kernels_.costs.refine, kMostKept)) return;
    if (choice.survival > kMostSurvivors) return;
    report.reason = RowReason::measured;
  }
  work_.screen = Screen::dosa;
  work_.expected_survival = choice.survival;
  work_.expected_kept = choice.kept;
  report.path = Path::dosa;
  report.retained_heads = choice.retained;
  report.aggregates = choice.aggregates;
}

void Worker::prepare() {
  work_.report = {};
  work_.report.visible = visible() + work_.row.forced();
  work_.selected = work_.kept = 0;
  work_.floor = -kInfinity;
  std::fill_n(work_.memory.kept, layout_.most_slices(), std::int64_t{0});
  work_.slots = work_.row.free_slots(options_.top_k);
  work_.screen = Screen::none;
  if (work_.slots == 0) {
    work_.report.reason = RowReason::all_selected;
    return;
  }
  if (!make_dense()) {
    work_.screen = Screen::model;
    work_.report.reason = RowReason::not_finite;
    return;
  }
  choose_path();
  if (work_.screen == Screen::dense) make_dense_screen();
  if (work_.screen == Screen::dosa && options_.ablation.seeds && !options_.ablation.best_first) {
    work_.report.threshold = work_.report.first_threshold = seeded_threshold();
    work_.floor = work_.report.threshold;
  }
  work_.report.predicted = work_.floor;
}

// Those of `from` that reach the threshold, to list, lower_, upper_. `proven`: the K-th largest lower bound of all, or
// unknown.
Found Worker::keep_candidates(const Candidates& from, std::int64_t count, float proven) {
  const float threshold = work_.report.threshold;
  const std::int64_t kept = kernels_.keep_not_below(from, count, threshold, 0, {work_.memory.list, lower_, upper_});
  // The K keys of a K-th bound that reaches the threshold are among the candidates.
  return {Outcome::found, kept, proven >= threshold ? proven : kUnknown};
}

// Gives those of list[0..count) with !(upper < low) and !(lower >= high) the dense form's bounds.
void Worker::refine_between(const float* lower, const float* upper, std::int64_t count, float low, float high) {
  constexpr std::int64_t kSome = 512;  // keys looked at at once; refining fewer than so many at once takes longer
  std::int32_t place[2 * kSome + 16], key[2 * kSome];
  float new_lower[2 * kSome], new_upper[2 * kSome];
  std::int64_t found = 0;
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t some = std::min(kSome, count - first);
    std::int32_t* const fresh = place + found;
    const std::int64_t more = kernels_.positions_between(lower + first, upper + first, some, low, high, fresh);
    for (std::int64_t j = 0; j < more; ++j) fresh[j] += static_cast<std::int32_t>(first);
    found += more;
    first += some;
    if (found < kSome && first < count) continue;
    for (std::int64_t j = 0; j < found; ++j) key[j] = work_.memory.list[place[j]];
    refine_keys(key, found, new_lower, new_upper);
    for (std::int64_t j = 0; j < found; ++j) {
      lower_[place[j]] = new_lower[j];
      upper_[place[j]] = new_upper[j];
    }
    found = 0;
  }
}

// Integers leave more keys between acceptance and rejection (T10) than should be scored under the model: those get the
// dense form's bounds that may lie where the threshold most likely is, and then, of those that lie on one side of it,
// the ones that are still open.
void Worker::refine_open(std::int64_t count) {
  const auto above = [&] { return kth(upper_, count, work_.slots + 1); };
  const auto below = [&] { return kth(lower_, count, work_.slots); };
  const auto behind = [](float x) { return std::nextafter(x, kInfinity); };
  const float from = below(), guess = from + (above() - from) / 2;
  refine_between(lower_, upper_, count, guess, behind(guess));
  refine_between(lower_, lower_, count, behind(guess), behind(above()));
  refine_between(upper_, upper_, count, below(), guess);
}

// Leaves the candidates in list, their bounds in lower_, upper_.
Found Worker::dense_candidates() {
  RowReport& report = work_.report;
  report.survivors = visible();
  const Candidates all{work_.memory.list, lower_, upper_};
  if (work_.slots >= visible()) return keep_candidates(all, work_.kept, kUnknown);
  if (work_.kept < work_.slots) return {Outcome::floor_too_high};
  float proven = kth(lower_, work_.kept, work_.slots);
  std::int64_t count = work_.kept;
  if (work_.screened.narrow) {
    count = kernels_.keep_not_below(all, count, proven, 0, all);
    if (count > work_.slots) {
      refine_open(count);
      proven = kth(lower_, count, work_.slots);
    }
  }
  report.threshold = std::max(report.threshold, proven);
  if (report.threshold < work_.floor) return {Outcome::floor_too_high};
  return keep_candidates(all, count, proven);
}

// tau from seeds alone: the K-th largest proven lower bound of at least K distinct visible keys (T9 a).
float Worker::seeded_threshold() {
  const std::span<const std::int32_t> seeds = visible_seeds(tile_, work_);
  const auto count = static_cast<std::int64_t>(seeds.size());
  work_.report.seeds = count;
  if (count < work_.slots) return -kInfinity;
  refine_keys(seeds.data(), count, lower_, upper_);
  return kth(lower_, count, work_.slots);
}

// Appends the keys with bounds in from .. to to `count` refined ones; returns how many, or -1 where they are too many.
std::int64_t Worker::list_between(const RefinedKeys& place, std::int64_t count, float from, float to) {
  if (kernels_.count_not_below(upper_, work_.kept, from) > std::min(place.most, place.room - count)) return -1;
  std::int32_t* const fresh = place.key + count;
  const std::int64_t found = kernels_.positions_between(upper_, upper_, work_.kept, from, to, fresh);
  const auto base = static_cast<std::int32_t>(work_.row.free.first);
  for (std::int64_t j = 0; j < found; ++j) fresh[j] = place.over_kept ? base + fresh[j] : work_.memory.list[fresh[j]];
  return found;
}

// The threshold from what is refined; whether refining the `wanted` keys with the largest bounds was enough.
bool Worker::threshold_settles(const RefinedKeys& place, std::int64_t wanted, Refining& state) {
  RowReport& report = work_.report;
  state.proven = kth(place.lower, state.count, work_.slots);
  report.threshold = std::max(report.threshold, state.proven);
  if (report.threshold >= state.from || wanted >= work_.kept) return true;
  const std::int64_t survivors = kernels_.count_not_below(upper_, work_.kept, report.threshold);
  if (survivors <= kRise * state.count && report.threshold >= work_.floor) return true;
  return 2 * wanted > most_refined();
}

void Worker::list_round() {
  if (work_.screen != Screen::dosa || work_.no_room || !best_first(work_.refining) || work_.kept < work_.slots) return;
  const RefinedKeys place = refined_keys(kernels_, work_);
  Refining& state = work_.refining;
  float from = kUnknown;
  if (state.rounds == 0) {
    from = best_bound(first_wanted());
  } else {
    if (state.listed == 0) return;
    state.take_listed();
    state.settled = threshold_settles(place, first_wanted(), state);
    from = work_.report.threshold;
    if (!state.settled || from < work_.floor || from >= state.from) return;
  }
  ++state.rounds;
  const std::int64_t found = list_between(place, state.count, from, state.from);
  if (found > 0) {
    state.listed = found;
    state.listed_from = from;
  }
}

// Survivors of the certificate: refined bounds in lower_, upper_, their keys in list, ascending in two runs.
Found Worker::dosa_candidates() {
  const RefinedKeys place = refined_keys(kernels_, work_);
  RowReport& report = work_.report;
  // Once, for what the screen left: another screen leaves other keys.
  Refining state = std::exchange(work_.refining, {});
  if (state.listed > 0) state.take_listed();
  // Whether so many keys are worth refining shows where there is room for them.
  const Outcome crowded = work_.has_room_for_all() ? Outcome::too_many : Outcome::no_room;
  // Refines the keys with bounds from `from` on that are not refined yet; false: too many.
  const auto refine_from = [&](float from) {
    if (from >= state.from) return true;
    const std::int64_t found = list_between(place, state.count, from, state.from);
    if (found < 0) return false;
    refine_keys(place.key + state.count, found, place.lower + state.count, place.upper + state.count);
    state.listed = found;
    state.listed_from = from;
    state.take_listed();
    return true;
  };

  if (best_first(state) && !state.settled) {
    if (work_.kept < work_.slots) return {Outcome::floor_too_high};
    for (std::int64_t wanted = first_wanted();; wanted *= 2) {
      if (!refine_from(best_bound(wanted))) return {crowded};
      if (threshold_settles(place, wanted, state)) break;
    }
  }
  if (report.threshold < work_.floor) return {Outcome::floor_too_high};
  if (!refine_from(report.threshold)) return {crowded};
  report.survivors = state.count;
  return keep_candidates({place.key, place.lower, place.upper}, state.count, state.proven);
}

void Worker::score_under_model(const std::int32_t* keys, std::int64_t first, std::int64_t count, float* scores) {
  if (count == 0) return;
  if (!model_row_ready_) kernels_.model_row(options_.model, work_.row.score, thread_.model_row);
  model_row_ready_ = true;
  kernels_.model_scores(options_.model, work_.row.score, thread_.model_row, tile_.keys, keys, first, count, scores);
  work_.report.exact += count;
}

// T10: accept, reject, score the others under the model.
void Worker::resolve(const Found& found, bool scores_needed) {
  const std::int64_t candidates = found.candidates;
  std::int32_t* const list = work_.memory.list;
  Entry* const entries = work_.memory.entries;
  const float certain_above = candidates > work_.slots ? kth(upper_, candidates, work_.slots + 1) : -kInfinity;
  const float certain_below = candidates <= work_.slots ? -kInfinity
                              : std::isnan(found.below) ? kth(lower_, candidates, work_.slots)
                                                        : found.below;
  const auto [certain, open] =
      decide({lower_, upper_, list, candidates}, work_.slots, certain_above, certain_below, entries);
  const std::int64_t left = work_.slots - certain;
  work_.selected = certain;
  if (left > 0) work_.selected += select_scored(open, left, entries + certain);
  if (!scores_needed) return merge_runs(certain);
  for (std::int64_t j = 0; j < certain; ++j) list[j] = entries[j].index;
  score_under_model(list, 0, certain, lower_);
  for (std::int64_t j = 0; j < certain; ++j) entries[j].score = lower_[j];
  note_last_score();
}

// The best `wanted` of list[0..count) under the model, in the list's order; returns how many there are. The bounds are
// not needed any more: scores take the place of one, ties that of the other.
std::int64_t Worker::select_scored(std::int64_t count, std::int64_t wanted, Entry* chosen) {
  std::int32_t* const list = work_.memory.list;
  float* const scores = lower_;
  score_under_model(list, 0, count, scores);
  std::int64_t able = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    const float score = scores[j];
    list[able] = list[j];
    scores[able] = score;
    able += selectable(score) ? 1 : 0;
  }
  float last = -kInfinity;
  std::int32_t last_tie = std::numeric_limits<std::int32_t>::max();
  if (able > wanted) {
    last = kth(scores, able, wanted);
    auto* const ties = reinterpret_cast<std::int32_t*>(upper_);
    std::int64_t better = 0, tied = 0;
    for (std::int64_t j = 0; j < able; ++j) {
      better += scores[j] > last ? 1 : 0;
      ties[tied] = list[j];
      tied += scores[j] == last ? 1 : 0;
    }
    if (tied > wanted - better) {
      std::int32_t* const nth = ties + (wanted - better - 1);
      std::nth_element(ties, nth, ties + tied);
      last_tie = *nth;
    }
  }
  std::int64_t taken = 0;
  for (std::int64_t j = 0; j < able; ++j) {
    chosen[taken] = {scores[j], list[j]};
    const int better = scores[j] > last ? 1 : 0, tie = scores[j] == last ? 1 : 0, early = list[j] <= last_tie ? 1 : 0;
    taken += better | (tie & early);
  }
  return taken;
}

// Sorting by index, as the writer wants it, costs three percent of a certified row at K = 2048; what is certain and
// what was scored are one or two ascending runs each.
void Worker::merge_runs(std::int64_t certain) {
  const auto by_index = [](const Entry& a, const Entry& b) { return a.index < b.index; };
  Entry* const first = work_.memory.entries;
  Entry* const middle = first + certain;
  Entry* const last = first + work_.selected;
  Entry* const second = std::is_sorted_until(first, middle, by_index);
  Entry* const fourth = std::is_sorted_until(middle, last, by_index);
  if (!std::is_sorted(second, middle, by_index) || !std::is_sorted(fourth, last, by_index))
    return std::sort(first, last, by_index);
  Entry* const spare = last;  // the buffer has room for twice the entries
  merge_without_branches(first, second, second, middle, spare);
  merge_without_branches(middle, fourth, fourth, last, spare + certain);
  merge_without_branches(spare, spare + certain, spare + certain, spare + work_.selected, first);
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
  for (std::int64_t done = 0; done < visible(); done += kModelBlock) {
    const std::int64_t block = std::min(kModelBlock, visible() - done);
    score_under_model(nullptr, first + done, block, thread_.block_scores);
    for (std::int64_t j = 0; j < block; ++j) {
      const float score = thread_.block_scores[j];
      if (selectable(score)) selector.push({score, static_cast<std::int32_t>(first + done + j)});
    }
  }
  work_.selected = static_cast<std::int64_t>(selector.finish().size());
  note_last_score();
  work_.report.survivors = visible();
  work_.report.retained_heads = layout_.heads;
  work_.report.dot_products += static_cast<double>(visible()) * heads();
}

void Worker::finish(bool scores_needed) {
  work_.done = work_.screen == Screen::none || work_.screen == Screen::model;
  if (work_.screen == Screen::model) model_row();
  if (work_.done) return;
  RowReport& report = work_.report;
  report.dot_products += static_cast<double>(visible()) * rows_per_key();
  const Found found = work_.no_room ? Found{Outcome::no_room} : find_candidates();
  // Each of these happens once: the next floor is proven, too many survivors make the row dense, and all keys fit.
  switch (found.outcome) {
    case Outcome::found:
      work_.done = true;
      break;
    case Outcome::no_room:
      work_.keeps_all = true;
      return;
    case Outcome::too_many:
      work_.screen = Screen::dense;
      work_.screened = work_.dense;
      report.path = Path::dense;
      report.reason = RowReason::too_many_survivors;
      work_.floor = report.threshold;
      return;
    case Outcome::floor_too_high:
      // Keys that a caller changes under a run can break what is proven, but not this: all are kept then.
      if (report.rescreened) report.threshold = -kInfinity;
      report.rescreened = true;
      work_.floor = report.threshold;
      return;
  }
  // Too many survivors may hide that the floor was too high: such a row has been screened again, too.
  if (report.reason == RowReason::too_many_survivors && report.threshold < report.predicted) report.rescreened = true;
  resolve(found, scores_needed);
}

}  // namespace

std::atomic<RowObserver*> row_observer{nullptr};
std::atomic<std::int64_t> shortest_predicted{kShortWindow};

void fetch_keys(const KeySource& keys, const std::int32_t* index, std::int64_t first, std::int64_t count) {
  constexpr int kSecondLevel = 2, kLine = 64;
  if (count <= 0) return;
  if (index == nullptr) {
    const KeyAddress head = keys.locate(first), tail = keys.locate(first + count - 1);
    // Both codes and scales side by side: between scales that are not there may lie any number of lines.
    if (head.codes != nullptr && tail.codes != nullptr && tail.codes - head.codes == (count - 1) * keys.head_dim() &&
        tail.scale - head.scale == count - 1) {
      for (const std::uint8_t* at = head.codes; at < tail.codes + keys.head_dim(); at += kLine)
        __builtin_prefetch(at, 0, kSecondLevel);
      for (const float* at = head.scale; at <= tail.scale; at += kLine / sizeof(float))
        __builtin_prefetch(at, 0, kSecondLevel);
      return;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const KeyAddress at = keys.locate(index != nullptr ? index[i] : first + i);
    if (at.codes == nullptr) continue;
    __builtin_prefetch(at.scale, 0, kSecondLevel);
    for (int byte = 0; byte < keys.head_dim(); byte += kLine) __builtin_prefetch(at.codes + byte, 0, kSecondLevel);
  }
}

void prepare_row(const TileContext& tile, ThreadMemory& thread, RowWork& work) { Worker(tile, thread, work).prepare(); }

PackSpec pack_for(const TileContext& tile, std::span<const RowWork> works) {
  PackSpec spec = tile.pack;
  const bool centred = std::any_of(works.begin(), works.end(), [](const RowWork& work) {
    return work.screen == Screen::dosa && work.screened.has_alternative;
  });
  if (!centred) spec.mean = nullptr;
  return spec;
}

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// Where in a row's lists the keys from `key` on have their place.
std::int64_t place_of(const RowWork& work, std::int64_t key) {
  const Window& window = work.row.free;
  const std::int64_t seen = std::clamp(key, window.first, window.last) - window.first;
  return work.has_room_for_all() ? seen : seen * work.memory.room / work.visible();
}

/// A slice's screen of the rows whose forms are narrow, or of the others: they share no panel.
class SliceScreen {
 public:
  SliceScreen(const Slice& slice, std::span<RowWork> works, bool narrow) : slice_(slice), narrow_(narrow) {
    for (RowWork& work : works) {
      const bool dense = work.screen == Screen::dense;
      if (!dense && work.screen != Screen::dosa) continue;
      const Form& form = work.screened;
      if (form.narrow != narrow) continue;
      const Window& window = work.row.free;
      const std::int64_t at = place_of(work, slice.first);
      room_[count_] = work.has_room_for_all() ? kUnlimited : place_of(work, slice.last) - at;
      rows_[count_] = {&form,
                       work.floor,
                       static_cast<std::int32_t>(window.first),
                       static_cast<std::int32_t>(window.last),
                       dense,
                       {work.memory.list + at, work.memory.lower + at, work.memory.upper + at}};
      works_[count_++] = &work;
    }
  }

  void run(const TileContext& tile, ThreadMemory& thread, PackSpec pack) {
    const std::int64_t last = slice_.last;
    const Kernels& kernels = *tile.layout->kernels;
    pack.narrow = narrow_;
    pack.wide = !narrow_;
    const int most = narrow_ ? kernels.narrow_panels : 1;
    std::array<Panel, kMostPanels> panels;
    for (std::int64_t first = slice_.first; first < last;) {
      // Whatever a call may keep must fit.
      drop_rows_without(static_cast<std::int64_t>(most) * kernels.panel_keys);
      if (count_ == 0) return;
      const auto base = static_cast<std::int32_t>(first);
      int ready = 0;
      for (; ready < most && first < last; ++ready) {
        const auto keys = static_cast<int>(std::min<std::int64_t>(kernels.panel_keys, last - first));
        Panel& panel = panels[static_cast<std::size_t>(ready)];
        if (!narrow_ || !tile.packed->find(tile.keys, first, keys, panel)) {
          panel = thread.panels[ready];
          kernels.pack(tile.keys, nullptr, first, keys, pack, panel);
          fetch_keys(tile.keys, nullptr, first + keys, std::min<std::int64_t>(kernels.panel_keys, last - first - keys));
        }
        first += keys;
      }
      // Packed keys lie beyond the second-level cache, and a screen takes long enough for the next to come from there.
      if (narrow_) share_ahead(tile.packed->packed_from(first, most));
      kernels.screen(rows_.data(), static_cast<int>(count_), panels.data(), ready, base);
    }
    for (std::size_t i = 0; i < count_; ++i) works_[i]->memory.kept[slice_.number] = rows_[i].count;
  }

 private:
  void drop_rows_without(std::int64_t keys) {
    for (std::size_t i = count_; i-- > 0;) {
      if (room_[i] - rows_[i].count >= keys) continue;
      works_[i]->memory.kept[slice_.number] = kNoRoom;
      --count_;
      rows_[i] = rows_[count_];
      works_[i] = works_[count_];
      room_[i] = room_[count_];
    }
  }

  void share_ahead(std::span<const std::byte> memory) {
    constexpr std::size_t kLine = 64;
    const std::size_t lines = (memory.size() + kLine - 1) / kLine;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t from = lines * i / count_ * kLine, to = lines * (i + 1) / count_ * kLine;
      rows_[i].ahead = memory.data() + from;
      rows_[i].ahead_bytes = static_cast<std::int64_t>(to - from);
    }
  }

  const Slice slice_;
  const bool narrow_;
  std::size_t count_ = 0;
  std::array<ScreenRow, kScreenRows> rows_;
  std::array<std::int64_t, kScreenRows> room_;
  std::array<RowWork*, kScreenRows> works_;
};

}  // namespace

void screen_keys(const TileContext& tile, ThreadMemory& thread, const Slice& slice, const PackSpec& pack,
                 std::span<RowWork> works) {
  for (const bool narrow : {false, true}) SliceScreen(slice, works, narrow).run(tile, thread, pack);
}

void join_slice(const Slice& slice, RowWork& work) {
  const RowMemory& memory = work.memory;
  const std::int64_t count = memory.kept[slice.number];
  if (count == kNoRoom) work.no_room = true;
  if (count == 0 || work.no_room) return;
  const std::int64_t from = place_of(work, slice.first);
  const auto move = [&](auto* values) {
    if (from == work.kept) return;
    std::memmove(values + work.kept, values + from, static_cast<std::size_t>(count) * sizeof(*values));
  };
  move(memory.list);
  move(memory.upper);
  if (work.screen == Screen::dense) move(memory.lower);
  work.kept += count;
}

namespace {

std::int64_t wanted_room(const Layout& layout, const RowWork& work) noexcept {
  if (work.screen != Screen::dense && work.screen != Screen::dosa) return 0;
  const std::int64_t visible = work.visible();
  if (work.keeps_all || work.floor == -kInfinity) return visible;
  // Of a certified row a sample has told how many it keeps; refined keys lie behind those, their bounds in halves of a
  // list. Beginning again costs a screen, a longer list only a pass for other rows.
  constexpr double kMargin = 1.5;
  const double expected = std::max(work.expected_kept + work.expected_survival, 2 * work.expected_survival);
  const auto wanted = static_cast<std::int64_t>(kMargin * expected * static_cast<double>(visible));
  return std::clamp(work.screen == Screen::dosa ? wanted : 0, std::min(layout.room, visible), visible);
}

}  // namespace

std::size_t lend_lists(const Layout& layout, const SlotMemory& slot, std::span<RowWork> works) noexcept {
  std::int64_t at = 0;
  std::size_t given = 0;
  for (; given < works.size(); ++given) {
    const std::int64_t room = wanted_room(layout, works[given]);
    if (given > 0 && at + room + kListSlack > layout.pool) break;
    at = lend_list(slot, at, room, works[given].memory);
  }
  return given;
}

void begin_again(RowWork& work) noexcept {
  work.no_room = false;
  work.kept = 0;
  work.refining = {};
}

RefinedKeys refined_keys(const Kernels& kernels, const RowWork& work) {
  const std::int64_t visible = work.visible(), kept = work.kept, room = std::min(work.memory.room, visible);
  const std::int64_t half = room / 2;
  const bool all = kept == visible;
  const auto worthwhile = static_cast<std::int64_t>(static_cast<double>(visible) / kernels.costs.refine);
  return {work.memory.list + (all ? 0 : kept), work.memory.lower,           work.memory.lower + half,
          std::min(half, worthwhile),          all ? visible : room - kept, all};
}

void list_round(const TileContext& tile, ThreadMemory& thread, RowWork& work) {
  Worker(tile, thread, work).list_round();
}

void refine_listed(const TileContext& tile, const Window& keys, std::span<const RowWork> works) {
  const Kernels& kernels = *tile.layout->kernels;
  for (const RowWork& work : works) {
    const Refining& state = work.refining;
    if (state.listed == 0) continue;
    const RefinedKeys place = refined_keys(kernels, work);
    const std::int32_t* const listed = place.key + state.count;
    const std::int32_t* const end = listed + state.listed;
    const std::int32_t* const first = std::lower_bound(listed, end, keys.first);
    const std::int32_t* const last = std::lower_bound(first, end, keys.last);
    if (first == last) continue;
    const std::int64_t at = first - place.key;
    kernels.gathered_bounds(work.dense, tile.keys, first, last - first, place.lower + at, place.upper + at);
  }
}

void finish_row(const TileContext& tile, ThreadMemory& thread, bool scores_needed, RowWork& work) {
  Worker(tile, thread, work).finish(scores_needed);
}

}  // namespace dosa::cpu
