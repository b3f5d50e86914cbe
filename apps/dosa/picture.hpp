// What the pictures of `dosa explain` share: the page, axes, and the panels that both kinds have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "svg.hpp"

namespace dosa::app {

constexpr double kWidth = 1200, kLeft = 40;  ///< of a page
constexpr std::int64_t kBins = 280;          ///< of its key axis
extern const std::string_view kPictureStyle;

/// A rectangle of the page with a range of numbers on each axis.
struct Frame {
  double x, y, width, height;
  double x_first = 0, x_last = 1, y_first = 0, y_last = 1;
  [[nodiscard]] double px(double value) const { return x + (value - x_first) / (x_last - x_first) * width; }
  [[nodiscard]] double py(double value) const { return y + height - (value - y_first) / (y_last - y_first) * height; }
  [[nodiscard]] double bottom() const { return y + height; }
  [[nodiscard]] double right() const { return x + width; }
};

/// Keys of one part of the key axis.
struct KeyBin {
  double visible = 0, winners = 0, scored = 0;  ///< scored: and not selected
};

/// What a picture of these rows is headed with.
[[nodiscard]] std::string title(const std::vector<std::int64_t>& rows);
[[nodiscard]] std::string number(double value);
/// Three significant digits, without an exponent where a reader need not meet one.
[[nodiscard]] std::string figure(double value);
/// A name that leaves the line room for what follows it.
[[nodiscard]] std::string shortened(std::string name);

void x_axis(Svg& svg, const Frame& frame, std::string_view label, int wanted, bool grid = false);
/// A patch of colour and what it means; moves `x` behind them.
void chip(Svg& svg, std::string_view cls, double& x, double y, std::string_view label);
/// Says why a panel is empty instead of drawing axes around nothing; true where it did.
bool empty_panel(Svg& svg, const Frame& frame, bool is_empty, std::string_view why);
/// Bars of a distribution; values past `last` fall into the last bar. Sets the frame's ranges.
void draw_bars(Svg& svg, Frame& frame, const std::vector<double>& values, double first, double last, std::size_t bins);
/// Where selected and scored keys lie; `none` stands where there are neither.
void key_axis(Svg& svg, Frame frame, const std::vector<KeyBin>& bins, std::int64_t keys, std::string_view note,
              std::string_view none);

}  // namespace dosa::app
