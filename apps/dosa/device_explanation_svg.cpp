// The picture of `dosa explain --backend cuda`: how few pairs reach a buffer, the last scores, where the winners lie.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "contract/text.hpp"
#include "device_explanation.hpp"
#include "report.hpp"

namespace dosa::app {
namespace {

constexpr double kDeviceHeight = 640;

class DevicePicture {
 public:
  explicit DevicePicture(const DeviceExplanation& e)
      : e_(e), svg_(kWidth, kDeviceHeight, title(e.rows), kPictureStyle) {}

  std::string draw() {
    svg_.rect("page", 0, 0, kWidth, kDeviceHeight);
    heading();
    figures();
    funnel({76, 232, 610, 132});
    last_scores({760, 232, 400, 132});
    key_axis(svg_, {76, 470, 1084, 62}, e_.bins, e_.shape.keys,
             "share of the visible keys that is selected, along the key axis", "no key is visible");
    svg_.text("note", kLeft, kDeviceHeight - 28,
              "No certificate on this backend yet: every visible key is scored with all heads, so there is no bound, "
              "slack or tau gap to draw.");
    return svg_.finish();
  }

 private:
  void heading() {
    svg_.text("title", kLeft, 54, title(e_.rows));
    svg_.text("sub", kLeft, 80,
              text::format("{}  ·  {} keys, {} heads of {}, K = {}  ·  model {}, {}  ·  {} dense",
                           shortened(std::filesystem::path(e_.trace).stem().string()),
                           human_count(static_cast<double>(e_.shape.keys)), e_.shape.heads, e_.shape.head_dim,
                           human_count(static_cast<double>(e_.options.top_k)), name(e_.options.model),
                           name(e_.options.backend), human_count(static_cast<double>(e_.call_rows))));
  }

  void figures() {
    const auto candidates = static_cast<double>(e_.counters.candidates);
    const auto visible = static_cast<double>(e_.call_visible), selected = static_cast<double>(e_.call_selected);
    struct Figure {
      std::string value, what, of;
    };
    const std::array<Figure, 4> figures{{
        {percent(candidates, visible), "of the pairs became candidates",
         text::format("{} of {}", human_count(candidates), human_count(visible))},
        {selected > 0 ? text::format("{:.2f}", candidates / selected) : "-", "candidates a selected key",
         text::format("{} selected", human_count(selected))},
        {human_count(static_cast<double>(e_.counters.compactions)), "full buffers compacted", "to the best K, exactly"},
        {human_count(static_cast<double>(e_.counters.repeats)), "rows streamed again",
         text::format("of {} with a predicted threshold", human_count(static_cast<double>(e_.counters.sampled_rows)))},
    }};
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const double x = kLeft + (kWidth - 2 * kLeft) / 4 * static_cast<double>(i);
      svg_.text("figure", x, 124, figures[i].value);
      svg_.text("caption", x, 143, figures[i].what);
      svg_.text("caption", x, 159, figures[i].of);
    }
  }

  /// Three bars of one scale. Rows that stream again are candidates twice, so the second may be the longest.
  void funnel(const Frame& frame) {
    svg_.text("head", frame.x - 36, frame.y - 40, "From scores to winners");
    svg_.text("note", frame.x - 36, frame.y - 19,
              text::format("(row, key) pairs of the call, {}", counted(e_.call_rows, "row")));
    if (empty_panel(svg_, frame, e_.call_visible == 0, "no key is visible")) return;
    struct Bar {
      std::string_view what, cls;
      double pairs;
    };
    const std::array<Bar, 3> bars{{{"scored", "heads", static_cast<double>(e_.call_visible)},
                                   {"buffered", "survivor", static_cast<double>(e_.counters.candidates)},
                                   {"selected", "winner", static_cast<double>(e_.call_selected)}}};
    const double most = std::max(bars[0].pairs, bars[1].pairs);
    constexpr double kLabels = 64, kNumbers = 96, kBar = 30, kStep = 48;
    for (std::size_t i = 0; i < bars.size(); ++i) {
      const double y = frame.y + kStep * static_cast<double>(i);
      // A bar that stands for something is never invisible.
      const double width =
          bars[i].pairs > 0 ? std::max(1.0, bars[i].pairs / most * (frame.width - kLabels - kNumbers)) : 0;
      svg_.text("note", frame.x - 36, y + kBar / 2 + 5, bars[i].what);
      svg_.rect(bars[i].cls, frame.x - 36 + kLabels, y, width, kBar);
      svg_.text("mark", frame.x - 36 + kLabels + width + 8, y + kBar / 2 + 5, human_count(bars[i].pairs));
    }
  }

  void last_scores(Frame frame) {
    const Quantiles q = quantiles(e_.last_scores);
    svg_.text("head", frame.x, frame.y - 40, "Last score: of the K-th key");
    svg_.text("note", frame.x, frame.y - 19,
              text::format("{} with more than K keys", counted(static_cast<std::int64_t>(q.count), "row")));
    if (empty_panel(svg_, frame, q.count == 0 || !std::isfinite(q.max - q.min), "no finite last score")) return;
    draw_bars(svg_, frame, e_.last_scores, q.min, q.max, 48);
    x_axis(svg_, frame, "score", 6);
  }

  const DeviceExplanation& e_;
  Svg svg_;
};

}  // namespace

std::string device_explanation_svg(const DeviceExplanation& e) { return DevicePicture(e).draw(); }

}  // namespace dosa::app
