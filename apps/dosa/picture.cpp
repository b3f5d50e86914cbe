#include "picture.hpp"

#include <algorithm>
#include <cmath>

#include "console.hpp"
#include "contract/text.hpp"

namespace dosa::app {

// One hue a fate, the same in every panel; greys carry no meaning. Readers without a dark mode ignore the last rule.
const std::string_view kPictureStyle = R"(
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif;fill:#1f2530}
.page{fill:#fcfcfb}.title{font-size:25px;font-weight:600}.sub{font-size:14px;fill:#667080}
.figure{font-size:27px;font-weight:600}.caption{font-size:12.5px;fill:#667080}
.head{font-size:15px;font-weight:600}.tick{font-size:12px;fill:#667080}.tick.mid,.mid{text-anchor:middle}
.end{text-anchor:end}.axis{font-size:12.5px;fill:#667080}.note{font-size:12.5px;fill:#667080}.mark{font-size:12.5px}.halo{paint-order:stroke;stroke:#fcfcfb;stroke-width:4px;stroke-linejoin:round;stroke-opacity:.85}
.grid{stroke:#e8e9ec;stroke-width:1}.base{stroke:#b9bfc8;stroke-width:1}.limit{stroke:#1f2530;stroke-width:1.4}
.limit.dash{stroke-dasharray:5 4}.diagonal{stroke:#b9bfc8;stroke-width:1.2;stroke-dasharray:2 4}
.shade{fill:#8b95a5;fill-opacity:.09}.rejected{fill:#8490a2}.survivor{fill:#e08e2b}.scouted{fill:#f3c58c}.plate{fill:#fcfcfb;fill-opacity:.82}.winner{fill:#0c8a86}
.heads{fill:#3f5f8f}.aggregate{fill:#93b1d6}.saved{fill:#eceef1}.bars{fill:#5b7aa8}.row{fill:#d4502f}.rowline{stroke:#d4502f;stroke-width:1.6}
.inbar{font-size:13px;fill:#fff;text-anchor:middle;font-weight:600}.inbar.dark{fill:#1f2530}
@media (prefers-color-scheme:dark){text{fill:#e7eaee}.page{fill:#15181c}.halo{stroke:#15181c}.sub,.caption,.tick,.axis,.note{fill:#9aa5b3}
.grid{stroke:#272c33}.base{stroke:#4a525d}.limit{stroke:#e7eaee}.diagonal{stroke:#4a525d}.shade{fill:#9aa5b3;fill-opacity:.1}
.rejected{fill:#7d8a9c}.survivor{fill:#f0a445}.scouted{fill:#8f6a3c}.plate{fill:#15181c}.winner{fill:#2bb5ae}.heads{fill:#5f86c2}.aggregate{fill:#a9c3e4}
.saved{fill:#2a2f36}.bars{fill:#7f9fcf}.inbar.dark{fill:#15181c}.inbar.quiet{fill:#e7eaee}}
)";

std::string title(const std::vector<std::int64_t>& rows) {
  if (rows.size() == 1) return text::format("What happened to the keys of row {}", rows[0]);
  return text::format("What happened to the keys of {}", counted(std::ssize(rows), "row"));
}

std::string number(double value) { return text::format("{:.3g}", std::abs(value) < 1e-12 ? 0.0 : value); }

std::string figure(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e6)) return text::format("{:.1e}", value);
  return text::format("{:.{}f}", value,
                      size == 0 || size >= 100 ? 0
                      : size >= 10             ? 1
                      : size >= 1              ? 2
                      : size >= 0.1            ? 2
                      : size >= 0.01           ? 3
                                               : 4);
}

std::string shortened(std::string name) {
  constexpr std::size_t kMost = 36;
  if (name.size() > kMost) name = name.substr(0, kMost / 2) + "..." + name.substr(name.size() - kMost / 2);
  return name;
}

void x_axis(Svg& svg, const Frame& frame, std::string_view label, int wanted, bool grid) {
  for (const double tick : nice_ticks(frame.x_first, frame.x_last, wanted)) {
    if (grid) svg.line("grid", frame.px(tick), frame.y, frame.px(tick), frame.bottom());
    svg.text("tick mid", frame.px(tick), frame.bottom() + 18, number(tick));
  }
  svg.line("base", frame.x, frame.bottom(), frame.right(), frame.bottom());
  svg.text("axis mid", frame.x + frame.width / 2, frame.bottom() + 37, label);
}

void chip(Svg& svg, std::string_view cls, double& x, double y, std::string_view label) {
  svg.rect(cls, x, y - 10, 11, 11, 2);
  svg.text("note", x + 17, y, label);
  x += 17 + 6.9 * static_cast<double>(label.size()) + 18;
}

bool empty_panel(Svg& svg, const Frame& frame, bool is_empty, std::string_view why) {
  if (!is_empty) return false;
  svg.rect("shade", frame.x, frame.y, frame.width, frame.height);
  svg.text("note mid", frame.x + frame.width / 2, frame.y + frame.height / 2, why);
  return true;
}

void draw_bars(Svg& svg, Frame& frame, const std::vector<double>& values, double first, double last, std::size_t bins) {
  if (!(last > first)) {
    const double margin = std::max(std::abs(first) * 0.5, 1e-6);
    first -= margin;
    last += margin;
  }
  std::vector<double> counts(bins);
  for (const double value : values) {
    const double place = (value - first) / (last - first) * static_cast<double>(bins);
    if (!std::isnan(place))
      counts[static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(bins - 1)))] += 1;
  }
  frame.x_first = first;
  frame.x_last = last;
  // The highest bar leaves a line of text free above it, for the mark.
  frame.y_last = std::max(1.0, *std::max_element(counts.begin(), counts.end())) * frame.height / (frame.height - 18);
  const double width = frame.width / static_cast<double>(bins);
  std::string data;
  for (std::size_t i = 0; i < bins; ++i) {
    if (counts[i] == 0) continue;
    // A bar that holds something is never invisible.
    const double height = std::max(1.0, frame.bottom() - frame.py(counts[i]));
    data += text::format("M{} {}h{}v{}h-{}z", coordinate(frame.x + width * static_cast<double>(i) + 0.5),
                         coordinate(frame.bottom() - height), coordinate(width - 1), coordinate(height),
                         coordinate(width - 1));
  }
  svg.path("bars", data);
}

void key_axis(Svg& svg, Frame frame, const std::vector<KeyBin>& bins, std::int64_t keys, std::string_view note,
              std::string_view none) {
  svg.text("head", frame.x - 36, frame.y - 24, "Where they lie");
  svg.text("note", frame.x + 106, frame.y - 24, note);
  double most = 0;
  for (const auto& bin : bins) {
    if (bin.visible > 0) most = std::max(most, (bin.winners + bin.scored) / bin.visible);
  }
  if (empty_panel(svg, frame, !(most > 0), none)) return;
  frame.x_last = static_cast<double>(std::max<std::int64_t>(keys, 1));
  frame.y_last = most;
  std::string winners, survivors, hidden;
  const double width = frame.width / static_cast<double>(bins.size());
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const auto& bin = bins[i];
    const double x = frame.x + width * static_cast<double>(i);
    const auto bar = [&](std::string& data, double from, double to) {
      if (!(to > from)) return;
      data += text::format("M{} {}h{}V{}h-{}z", coordinate(x), coordinate(frame.py(to)), coordinate(width),
                           coordinate(frame.py(from)), coordinate(width));
    };
    if (bin.visible == 0) {
      hidden += text::format("M{} {}h{}v{}h-{}z", coordinate(x), coordinate(frame.y), coordinate(width),
                             coordinate(frame.height), coordinate(width));
      continue;
    }
    bar(winners, 0, bin.winners / bin.visible);
    bar(survivors, bin.winners / bin.visible, (bin.winners + bin.scored) / bin.visible);
  }
  svg.path("shade", hidden);
  svg.path("winner", winners);
  svg.path("survivor", survivors);
  svg.line("base", frame.x, frame.y, frame.x, frame.bottom());
  svg.text("tick end", frame.x - 7, frame.y + 9, text::format("{:.0f} %", 100 * most));
  svg.text("tick end", frame.x - 7, frame.bottom(), "0");
  for (const double tick : nice_ticks(0, frame.x_last, 10)) {
    svg.line("base", frame.px(tick), frame.bottom(), frame.px(tick), frame.bottom() + 4);
    svg.text("tick mid", frame.px(tick), frame.bottom() + 19, human_count(tick));
  }
  svg.line("base", frame.x, frame.bottom(), frame.right(), frame.bottom());
  svg.text("note end", frame.right(), frame.y - 24, "key index");
}

}  // namespace dosa::app
