// The picture of `dosa explain`: keys in the score-bound plane, slack and tau gap, the key axis, the work.

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "contract/text.hpp"
#include "explanation.hpp"
#include "picture.hpp"
#include "svg.hpp"

namespace dosa::app {
namespace {

constexpr double kHeight = 900;

class Picture {
 public:
  explicit Picture(const Explanation& explanation)
      : e_(explanation),
        slack_(quantiles(explanation.slacks)),
        gap_(quantiles(explanation.gaps)),
        svg_(kWidth, kHeight, title(e_.rows), kPictureStyle) {}

  std::string draw() {
    svg_.rect("page", 0, 0, kWidth, kHeight);
    heading();
    figures();
    plane({76, 232, 610, 350});
    slack_panel({760, 232, 400, 118});
    gap_panel({760, 472, 400, 110});
    key_axis(svg_, {76, 678, 1084, 62}, e_.bins, e_.shape.keys,
             "share of the visible keys that is selected or scored, along the key axis", "no row here was certified");
    work({76, 818, 1084, 34});
    return svg_.finish();
  }

 private:
  void heading() {
    svg_.text("title", kLeft, 54, title(e_.rows));
    std::string path = rows_by_path(e_.call.selection.stats);
    if (e_.single()) {
      const RowReport& report = e_.call.selection.stats.row_reports[static_cast<std::size_t>(e_.rows[0])];
      path = text::format("{} ({})", name(report.path), name(report.reason));
      if (report.path == Path::dosa) {
        path += text::format(", {} heads kept, {} aggregate{}", report.retained_heads, report.aggregates,
                             report.aggregates == 1 ? "" : "s");
      }
    }
    svg_.text("sub", kLeft, 80,
              text::format("{}  ·  {} keys, {} heads of {}, K = {}  ·  model {}, {}  ·  {}",
                           shortened(std::filesystem::path(e_.trace).stem().string()),
                           human_count(static_cast<double>(e_.shape.keys)), e_.shape.heads, e_.shape.head_dim,
                           human_count(static_cast<double>(e_.call.options.top_k)), name(e_.call.options.model),
                           name(e_.call.options.isa), path));
  }

  void figures() {
    const double total = e_.retained_dots + e_.aggregate_dots + e_.refinement_dots;
    double own_gap = gap_.median;
    if (e_.single()) own_gap = e_.kth_scores[0] - e_.thresholds[0];
    struct Figure {
      std::string value, what, of;
    };
    const bool bounded = e_.bounded_rows > 0;
    const std::array<Figure, 4> figures{{
        {bounded ? percent(static_cast<double>(e_.survivors), static_cast<double>(e_.competing)) : "-",
         "of the keys are scored",
         bounded ? text::format("{} of {}", human_count(static_cast<double>(e_.survivors)),
                                human_count(static_cast<double>(e_.competing)))
                 : ""},
        {e_.dense_dots > 0 ? text::format("{:.2f}", total / e_.dense_dots) : "-", "of dense scoring's dot products",
         e_.dense_dots > 0 ? text::format("{} of {}", human_count(total), human_count(e_.dense_dots)) : ""},
        {std::isfinite(own_gap) && gap_.count > 0 ? figure(own_gap) : "-", "tau gap, in score units",
         e_.single()      ? text::format("of row {}", e_.rows[0])
         : gap_.count > 0 ? text::format("median of {}", counted(static_cast<std::int64_t>(gap_.count), "row"))
                          : ""},
        {slack_.count > 0 ? figure(slack_.median) : "-", "slack, in score units",
         slack_.count > 0 ? text::format("median of {}", counted(static_cast<std::int64_t>(slack_.count), "key")) : ""},
    }};
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const double x = kLeft + (kWidth - 2 * kLeft) / 4 * static_cast<double>(i);
      svg_.text("figure", x, 124, figures[i].value);
      svg_.text("caption", x, 143, figures[i].what);
      svg_.text("caption", x, 159, figures[i].of);
    }
  }

  void plane(Frame frame) {
    svg_.text("head", frame.x - 36, frame.y - 40, "Score against upper bound");
    double x = frame.x - 36;
    chip(svg_, "winner", x, frame.y - 17, "selected");
    chip(svg_, "survivor", x, frame.y - 17, "scored, not selected");
    const bool scouted = std::any_of(e_.points.begin(), e_.points.end(),
                                     [](const KeyPoint& point) { return point.fate == KeyFate::scouted; });
    if (scouted) chip(svg_, "scouted", x, frame.y - 17, "scored to find the threshold");
    chip(svg_, "rejected", x, frame.y - 17, scouted ? "rejected unscored" : "rejected by its bound, never scored");
    svg_.text("note end", frame.right(), frame.y - 40, "stronger: more keys");
    if (empty_panel(svg_, frame, e_.points.empty(), "no row here was certified: every key was scored")) return;
    const double origin_kth = e_.single() ? e_.kth_scores[0] : 0;
    const double threshold = e_.single() ? e_.thresholds[0] : 0;
    plane_ranges(frame, origin_kth, threshold);
    svg_.begin_clip(frame.x, frame.y, frame.width, frame.height);
    for (const double tick : nice_ticks(frame.y_first, frame.y_last, 6)) {
      svg_.line("grid", frame.x, frame.py(tick), frame.right(), frame.py(tick));
    }
    if (std::isfinite(threshold)) {
      svg_.rect("shade", frame.x, frame.py(threshold), frame.width, frame.bottom() - frame.py(threshold));
    }
    const double corner = std::min(frame.x_last, frame.y_last), start = std::max(frame.x_first, frame.y_first);
    svg_.line("diagonal", frame.px(start), frame.py(start), frame.px(corner), frame.py(corner));
    density(frame, threshold, origin_kth);
    if (std::isfinite(threshold)) svg_.line("limit", frame.x, frame.py(threshold), frame.right(), frame.py(threshold));
    if (std::isfinite(origin_kth)) {
      // No key to the right of it lies below the threshold: the line ends where it stops meaning something.
      svg_.line("limit dash", frame.px(origin_kth), frame.y, frame.px(origin_kth),
                std::isfinite(threshold) ? frame.py(threshold) : frame.bottom());
    }
    svg_.end_clip();

    const double room = std::isfinite(threshold) ? frame.bottom() - frame.py(threshold) : frame.height;
    if (std::isfinite(threshold) && room > 24) {
      const double y = frame.py(threshold) + 18;
      free_label(
          frame, "rejected below the threshold used",
          {{frame.right() - 8, y, true}, {frame.x + 8, y, false}, {frame.right() - 8, frame.bottom() - 12, true}});
    }
    if (std::isfinite(origin_kth)) {
      const double at = frame.px(origin_kth);
      std::vector<Place> places;
      const double below = std::isfinite(threshold) ? frame.py(threshold) - 10 : frame.y + 40;
      for (const double y : {frame.y + 16, std::max(frame.y + 16, below)}) {
        if (at > frame.x + 230) places.push_back({at - 7, y, true});
        if (at < frame.right() - 230) places.push_back({at + 7, y, false});
      }
      free_label(frame, "K-th score: selected from here", places);
    }
    // Only where the corner under the diagonal is large enough for it.
    const Place corner_note{frame.right() - 8, frame.bottom() - 12, true};
    if (room > 64 && keys_under(frame, "a bound is never below its score: no key down here", corner_note) == 0) {
      svg_.text("note end", corner_note.x, corner_note.y, "a bound is never below its score: no key down here");
    }
    for (const double tick : nice_ticks(frame.y_first, frame.y_last, 6)) {
      svg_.text("tick end", frame.x - 7, frame.py(tick) + 4, number(tick));
    }
    x_axis(svg_, frame, e_.single() ? "score" : "score minus the row's K-th score", 8);
    svg_.text("axis mid", frame.x - 46, frame.y + frame.height / 2,
              e_.single() ? "upper bound" : "upper bound minus the row's threshold", -90);
  }

  struct Place {
    double x, y;
    bool end;  ///< x is where the text ends
  };
  static constexpr double kLetter = 6.6;

  /// Keys drawn where the text would stand.
  [[nodiscard]] std::int64_t keys_under(const Frame& frame, std::string_view text, const Place& place) const {
    const double width = kLetter * static_cast<double>(text.size());
    const double left = place.end ? place.x - width : place.x;
    return std::count_if(e_.points.begin(), e_.points.end(), [&](const KeyPoint& point) {
      const double x = std::clamp(frame.px(point.score), frame.x, frame.right());
      const double y = std::clamp(frame.py(point.upper), frame.y, frame.bottom());
      return x > left - 6 && x < left + width + 6 && y > place.y - 16 && y < place.y + 8;
    });
  }

  /// The text in the place that hides the fewest keys, the first of equals, on a plate.
  void free_label(const Frame& frame, std::string_view text, const std::vector<Place>& places) {
    const Place* best = nullptr;
    std::int64_t fewest = 0;
    for (const Place& place : places) {
      const std::int64_t hidden = keys_under(frame, text, place);
      if (best == nullptr || hidden < fewest) {
        best = &place;
        fewest = hidden;
      }
    }
    if (best == nullptr) return;
    const double width = kLetter * static_cast<double>(text.size());
    if (fewest > 0) svg_.rect("plate", (best->end ? best->x - width : best->x) - 4, best->y - 13, width + 8, 18, 3);
    svg_.text(best->end ? "mark halo end" : "mark halo", best->x, best->y, text);
  }

  /// Nearly all keys and both limits; the few outliers are drawn at the edge.
  void plane_ranges(Frame& frame, double kth, double threshold) const {
    std::vector<double> scores, uppers;
    for (const KeyPoint& point : e_.points) {
      scores.push_back(point.score);
      uppers.push_back(point.upper);
    }
    const auto range = [](std::vector<double>& values, double limit, double& first, double& last) {
      std::sort(values.begin(), values.end());
      first = values[values.size() / 1000];
      last = values.back();
      if (std::isfinite(limit)) {
        first = std::min(first, limit);
        last = std::max(last, limit);
      }
      const double margin = last > first ? 0.06 * (last - first) : std::max(1.0, std::abs(last)) * 0.5;
      first -= margin;
      last += margin;
    };
    range(scores, kth, frame.x_first, frame.x_last);
    range(uppers, threshold, frame.y_first, frame.y_last);
  }

  /// Cells start at the two limits: none reaches over a line that its keys do not cross.
  void density(const Frame& frame, double threshold, double kth) {
    constexpr double kCell = 4;
    const auto first_cell = [](double start, double limit) {
      return std::isfinite(limit) ? limit - kCell * std::ceil((limit - start) / kCell) : start;
    };
    const double x_start = first_cell(frame.x, frame.px(kth)), y_start = first_cell(frame.y, frame.py(threshold));
    const auto columns = static_cast<std::size_t>((frame.right() - x_start) / kCell) + 1,
               rows = static_cast<std::size_t>((frame.bottom() - y_start) / kCell) + 1;
    std::array<std::vector<int>, 4> counts;
    for (auto& grid : counts) grid.resize(columns * rows);
    int most = 1;
    for (const KeyPoint& point : e_.points) {
      const auto cell = [](double cells, std::size_t available) {
        return static_cast<std::size_t>(std::clamp(cells, 0.0, static_cast<double>(available - 1)));
      };
      const double x = (std::clamp(frame.px(point.score), frame.x, frame.right()) - x_start) / kCell;
      // The page counts downwards: a bound that equals the threshold belongs to the cell above the line.
      const double y = (std::clamp(frame.py(point.upper), frame.y, frame.bottom()) - y_start) / kCell;
      const std::size_t column = cell(std::floor(x + 1e-9), columns);
      const std::size_t row = cell(std::ceil(y - 1e-9) - 1, rows);
      most = std::max(most, ++counts[static_cast<std::size_t>(point.fate)][row * columns + column]);
    }
    constexpr int kLevels = 6;
    static constexpr std::array<std::string_view, 4> kClasses{"rejected", "scouted", "survivor", "winner"};
    for (std::size_t fate = 0; fate < kClasses.size(); ++fate) {
      std::array<std::string, kLevels> paths;
      const auto level_of = [&](std::size_t at) {
        const int count = counts[fate][at];
        if (count == 0) return -1;
        if (most == 1) return kLevels - 1;
        return std::min(kLevels - 1, static_cast<int>(kLevels * std::log1p(count) / std::log1p(most)));
      };
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t column = 0; column < columns;) {
          const int level = level_of(row * columns + column);
          std::size_t end = column + 1;
          while (level >= 0 && end < columns && level_of(row * columns + end) == level) ++end;
          if (level >= 0) {
            paths[static_cast<std::size_t>(level)] += text::format(
                "M{} {}h{}v{}h-{}z", coordinate(x_start + kCell * static_cast<double>(column)),
                coordinate(y_start + kCell * static_cast<double>(row)), kCell * static_cast<double>(end - column),
                kCell, kCell * static_cast<double>(end - column));
          }
          column = end;
        }
      }
      for (int level = 0; level < kLevels; ++level) {
        svg_.path(kClasses[fate], paths[static_cast<std::size_t>(level)], 0.42 + 0.58 * level / (kLevels - 1));
      }
    }
  }

  void median_mark(const Frame& frame, double value, const std::string& label) {
    const double x = std::clamp(frame.px(value), frame.x, frame.right());
    svg_.line("limit dash", x, frame.y - 2, x, frame.bottom());
    const bool left = x > frame.x + 0.6 * frame.width;
    svg_.text(left ? "mark end" : "mark", x + (left ? -7 : 7), frame.y + 8, label);
  }

  void slack_panel(Frame frame) {
    svg_.text("head", frame.x, frame.y - 40, "Slack: upper bound minus score");
    svg_.text("note", frame.x, frame.y - 19,
              text::format("{}; more heads or better aggregates lower it",
                           counted(static_cast<std::int64_t>(slack_.count), "key")));
    if (empty_panel(svg_, frame, slack_.count == 0, "no bound")) return;
    auto sorted = e_.slacks;
    std::sort(sorted.begin(), sorted.end());
    draw_bars(svg_, frame, e_.slacks, 0, sorted[(sorted.size() - 1) * 999 / 1000], 64);
    x_axis(svg_, frame, "slack (score units)", 6);
    median_mark(frame, slack_.median, text::format("median {}", figure(slack_.median)));
  }

  void gap_panel(Frame frame) {
    svg_.text("head", frame.x, frame.y - 40, "Tau gap: K-th score minus the threshold used");
    svg_.text(
        "note", frame.x, frame.y - 19,
        text::format("{} of the call; better seeds lower it", counted(static_cast<std::int64_t>(gap_.count), "row")));
    if (empty_panel(svg_, frame, gap_.count == 0, "no row of the call was certified")) return;
    draw_bars(svg_, frame, e_.gaps, 0, gap_.max, 48);
    x_axis(svg_, frame, "tau gap (score units)", 6);
    const double own = e_.single() ? e_.kth_scores[0] - e_.thresholds[0] : 0;
    if (e_.single() && e_.call.selection.stats.row_reports[static_cast<std::size_t>(e_.rows[0])].path == Path::dosa &&
        std::isfinite(own)) {
      const double x = std::clamp(frame.px(own), frame.x, frame.right());
      svg_.line("rowline", x, frame.y - 2, x, frame.bottom());
      const bool left = x > frame.x + 0.6 * frame.width;
      svg_.text(left ? "mark end" : "mark", x + (left ? -7 : 7), frame.y + 8, text::format("this row {}", figure(own)));
    } else {
      median_mark(frame, gap_.median, text::format("median {}", figure(gap_.median)));
    }
  }

  void work(Frame frame) {
    const double total = e_.retained_dots + e_.aggregate_dots + e_.refinement_dots;
    svg_.text("head", frame.x - 36, frame.y - 18, "Dot products");
    if (empty_panel(svg_, frame, !(e_.dense_dots > 0), "no key was visible")) return;
    const double whole = std::max(total, e_.dense_dots);
    double x = frame.x + 92;
    chip(svg_, "heads", x, frame.y - 18, "retained heads, all keys");
    chip(svg_, "aggregate", x, frame.y - 18, "aggregate rows, all keys");
    chip(svg_, "survivor", x, frame.y - 18, "all heads, survivors and sample");
    chip(svg_, "saved", x, frame.y - 18, "saved");
    svg_.text("note end", frame.right(), frame.y - 18, text::format("dense = 1 = {:.3g} dot products", e_.dense_dots));
    double at = frame.x;
    const auto segment = [&](std::string_view cls, double dots, std::string_view ink) {
      const double width = dots / whole * frame.width;
      svg_.rect(cls, at, frame.y, width, frame.height);
      if (width > 48) {
        svg_.text(text::format("inbar {}", ink), at + width / 2, frame.y + frame.height / 2 + 5,
                  text::format("{:.3f}", dots / e_.dense_dots));
      } else if (dots > 0) {
        svg_.text("tick mid", at + width / 2, frame.bottom() + 16, text::format("{:.3f}", dots / e_.dense_dots));
      }
      at += width;
    };
    segment("heads", e_.retained_dots, "");
    segment("aggregate", e_.aggregate_dots, "dark");
    segment("survivor", e_.refinement_dots, "dark");
    segment("saved", e_.dense_dots - total, "dark quiet");
    if (total > e_.dense_dots) {
      const double dense = frame.x + e_.dense_dots / whole * frame.width;
      svg_.line("limit", dense, frame.y - 5, dense, frame.bottom() + 5);
    }
  }

  const Explanation& e_;
  Quantiles slack_, gap_;
  Svg svg_;
};

}  // namespace

std::string explanation_svg(const Explanation& explanation) { return Picture(explanation).draw(); }

}  // namespace dosa::app
