// Just enough SVG: shapes by class, numbers without noise, text escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dosa::app {

class Svg {
 public:
  Svg(double width, double height, std::string_view title, std::string_view style);

  void rect(std::string_view cls, double x, double y, double width, double height, double radius = 0);
  void line(std::string_view cls, double x1, double y1, double x2, double y2);
  /// Raw path data.
  void path(std::string_view cls, std::string_view data, double opacity = 1);
  void text(std::string_view cls, double x, double y, std::string_view text, double rotate = 0);
  void begin_clip(double x, double y, double width, double height);
  void end_clip() { body_ += "</g>\n"; }
  [[nodiscard]] std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
  int clips_ = 0;
};

/// At most two decimals, no trailing zeros.
[[nodiscard]] std::string coordinate(double value);

/// Round numbers that cover [first, last], about `wanted` of them.
[[nodiscard]] std::vector<double> nice_ticks(double first, double last, int wanted);

}  // namespace dosa::app
