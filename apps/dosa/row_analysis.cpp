#include "row_analysis.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "contract/row.hpp"
#include "contract/text.hpp"
#include "contract/total_order.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/float_environment.hpp"
#include "cpu/layout.hpp"
#include "cpu/row_work.hpp"

namespace dosa::app {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The engine's own memory for one row of one thread.
struct RowEngine {
  cpu::Layout layout;
  std::unique_ptr<std::byte[]> memory;
  cpu::ThreadMemory thread{};
  cpu::RowMemory row{};

  RowEngine(const cpu::Kernels& kernels, Shape shape, const Options& options) {
    shape.rows = 1;
    layout = cpu::make_layout(kernels, shape, options, 1);
    cpu::Arena sizes;
    (void)cpu::cut_thread(sizes, layout);
    (void)cpu::cut_row(sizes, layout);
    (void)cpu::cut_slot(sizes, layout);
    memory = std::make_unique_for_overwrite<std::byte[]>(sizes.wanted_bytes());
    cpu::Arena arena(memory.get());
    thread = cpu::cut_thread(arena, layout);
    row = cpu::cut_row(arena, layout);
    (void)cpu::lend_list(cpu::cut_slot(arena, layout), 0, layout.room, row);
  }
};

void find_scores(const cpu::Kernels& kernels, const KeySource& keys, ScoreModel model, const Row& row,
                 std::byte* model_row, std::vector<float>& scores) {
  kernels.model_row(model, row.score, model_row);
  for (std::size_t done = 0; done < scores.size(); done += cpu::kModelBlock) {
    const auto count = static_cast<std::int64_t>(std::min<std::size_t>(cpu::kModelBlock, scores.size() - done));
    kernels.model_scores(model, row.score, model_row, keys, nullptr, row.free.first + static_cast<std::int64_t>(done),
                         count, scores.data() + done);
  }
}

/// The last winner in the total order, and how many there are.
void find_kth(std::int64_t slots, RowAnalysis& found) {
  std::vector<Entry> entries;
  entries.reserve(found.score.size());
  for (std::size_t i = 0; i < found.score.size(); ++i) {
    if (selectable(found.score[i])) {
      entries.push_back({found.score[i], static_cast<std::int32_t>(found.first_key + static_cast<std::int64_t>(i))});
    }
  }
  found.winners = std::min(slots, static_cast<std::int64_t>(entries.size()));
  found.kth_score = kInfinity;
  if (found.winners == 0) return;
  const auto last = entries.begin() + (found.winners - 1);
  std::nth_element(entries.begin(), last, entries.end(), before);
  found.kth_score = last->score;
  found.kth_index = last->index;
}

double standard_deviation(const std::vector<float>& values) {
  double sum = 0, squares = 0, count = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    sum += value;
    count += 1;
  }
  if (count < 2) return 0;
  const double mean = sum / count;
  for (const float value : values) {
    if (std::isfinite(value)) squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / (count - 1));
}

/// Counts positive dot products of each sign of head, for winners and for the others.
class Activation {
 public:
  Activation(const Row& row, RowAnalysis& found) : found_(found), sign_(static_cast<std::size_t>(row.score.heads)) {
    for (std::size_t h = 0; h < sign_.size(); ++h) {
      const float weight = row.score.weights[static_cast<std::int64_t>(h) * row.score.weight_stride];
      sign_[h] = weight > 0 ? 1 : weight < 0 ? -1 : 0;
      (weight > 0 ? found.positive_heads : weight < 0 ? found.negative_heads : found.zero_heads) += 1;
    }
  }
  void add(const float* dots, int panel_keys, std::size_t first, int count) {
    for (int i = 0; i < count; ++i) {
      const bool wins = found_.wins(first + static_cast<std::size_t>(i));
      (wins ? winners_ : others_) += 1;
      for (std::size_t h = 0; h < sign_.size(); ++h) {
        if (dots[h * static_cast<std::size_t>(panel_keys) + static_cast<std::size_t>(i)] > 0) {
          (sign_[h] > 0 ? (wins ? positive_winners_ : positive_others_)
                        : (wins ? negative_winners_ : negative_others_)) += sign_[h] == 0 ? 0 : 1;
        }
      }
    }
  }
  void finish() {
    const auto share = [](double active, double keys, int heads) {
      return keys > 0 && heads > 0 ? active / (keys * heads) : std::numeric_limits<double>::quiet_NaN();
    };
    found_.positive_active_winners = share(positive_winners_, winners_, found_.positive_heads);
    found_.positive_active_others = share(positive_others_, others_, found_.positive_heads);
    found_.negative_active_winners = share(negative_winners_, winners_, found_.negative_heads);
    found_.negative_active_others = share(negative_others_, others_, found_.negative_heads);
  }

 private:
  RowAnalysis& found_;
  std::vector<int> sign_;
  double winners_ = 0, others_ = 0;
  double positive_winners_ = 0, positive_others_ = 0, negative_winners_ = 0, negative_others_ = 0;
};

}  // namespace

RowAnalysis analyse_row(const Problem& problem, const Options& options, std::int64_t t, const RowReport& report,
                        std::vector<float> upper) {
  const cpu::FloatEnvironment environment;
  const Shape shape = shape_of(problem);
  const Row row = make_row(problem, shape, options, t);
  const KeySource keys = key_source(problem, row.request);
  const cpu::Kernels& kernels = *cpu::choose(options.isa).kernels;
  Options asked = options;
  asked.path = Path::dense;
  RowEngine engine(kernels, shape, asked);

  RowAnalysis found;
  found.row = t;
  found.report = report;
  found.threshold = report.threshold;
  found.first_key = row.free.first;
  found.score.resize(static_cast<std::size_t>(row.free.size()));
  find_scores(kernels, keys, options.model, row, engine.thread.model_row, found.score);
  find_kth(row.free_slots(options.top_k), found);
  found.score_std = standard_deviation(found.score);

  // The dense form's rows are the heads themselves: it gives the sign of every dot product.
  Activation activation(row, found);
  const std::vector<float> no_mean(static_cast<std::size_t>(shape.head_dim));
  cpu::TileContext tile;
  tile.layout = &engine.layout;
  tile.options = &asked;
  tile.keys = keys;
  tile.pack = {options.model, no_mean.data()};
  tile.first_key = row.free.first;
  cpu::RowWork work;
  work.row = row;
  work.memory = engine.row;
  cpu::prepare_row(tile, engine.thread, work);
  if (work.screen == cpu::Screen::dense) {
    for (std::int64_t first = row.free.first; first < row.free.last; first += kernels.panel_keys) {
      const auto count = static_cast<int>(std::min<std::int64_t>(kernels.panel_keys, row.free.last - first));
      kernels.pack(keys, nullptr, first, count, tile.pack, engine.thread.panel);
      kernels.dots(work.dense, engine.layout.heads, engine.thread.panel, engine.thread.panel_dots);
      activation.add(engine.thread.panel_dots, kernels.panel_keys, static_cast<std::size_t>(first - row.free.first),
                     count);
    }
  }
  activation.finish();

  found.bounded = !upper.empty() && upper.size() == found.score.size();
  if (!found.bounded) return found;
  found.upper = std::move(upper);
  for (std::size_t i = 0; i < found.upper.size(); ++i) {
    if (found.upper[i] < found.score[i]) {
      throw Error(ErrorKind::internal,
                  text::format("row {}, key {}: upper bound {} below the score {}; please report this trace", t,
                               found.first_key + static_cast<std::int64_t>(i), found.upper[i], found.score[i]));
    }
    if (std::isinf(found.upper[i]) && found.upper[i] > 0) ++found.unbounded;
  }
  // The keys with the largest bounds are scored first, to find the threshold; some may lie below it in the end.
  found.cut = found.threshold;
  if (report.path == Path::dosa && report.survivors > 0) {
    std::vector<float> sorted = found.upper;
    const auto last = sorted.begin() + (std::min<std::int64_t>(report.survivors, row.free.size()) - 1);
    std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
    found.cut = std::min(found.cut, *last);
  }
  return found;
}

}  // namespace dosa::app
