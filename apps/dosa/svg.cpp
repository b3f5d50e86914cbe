#include "svg.hpp"

#include <cmath>

#include "contract/text.hpp"

namespace dosa::app {
namespace {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      // XML 1.0 has no way to write most control characters.
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

std::string coordinate(double value) {
  std::string text = text::format("{:.2f}", std::isfinite(value) ? value : 0.0);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

Svg::Svg(double width, double height, std::string_view title, std::string_view style) {
  body_ = text::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>{3}</style>\n",
      coordinate(width), coordinate(height), escape(title), style);
}

void Svg::rect(std::string_view cls, double x, double y, double width, double height, double radius) {
  if (!(width > 0) || !(height > 0)) return;
  body_ += text::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}/>\n", cls, coordinate(x),
                        coordinate(y), coordinate(width), coordinate(height),
                        radius > 0 ? text::format(" rx=\"{}\"", coordinate(radius)) : "");
}

void Svg::line(std::string_view cls, double x1, double y1, double x2, double y2) {
  body_ += text::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", cls, coordinate(x1),
                        coordinate(y1), coordinate(x2), coordinate(y2));
}

void Svg::path(std::string_view cls, std::string_view data, double opacity) {
  if (data.empty()) return;
  body_ += text::format("<path class=\"{}\"{} d=\"{}\"/>\n", cls,
                        opacity < 1 ? text::format(" fill-opacity=\"{}\"", coordinate(opacity)) : "", data);
}

void Svg::text(std::string_view cls, double x, double y, std::string_view text, double rotate) {
  const std::string turn =
      rotate == 0 ? ""
                  : text::format(" transform=\"rotate({} {} {})\"", coordinate(rotate), coordinate(x), coordinate(y));
  body_ += text::format("<text class=\"{}\" x=\"{}\" y=\"{}\"{}>{}</text>\n", cls, coordinate(x), coordinate(y), turn,
                        escape(text));
}

void Svg::begin_clip(double x, double y, double width, double height) {
  body_ += text::format(
      "<clipPath id=\"clip{0}\"><rect x=\"{1}\" y=\"{2}\" width=\"{3}\" height=\"{4}\"/></clipPath>\n<g "
      "clip-path=\"url(#clip{0})\">\n",
      clips_, coordinate(x), coordinate(y), coordinate(width), coordinate(height));
  ++clips_;
}

std::vector<double> nice_ticks(double first, double last, int wanted) {
  std::vector<double> ticks;
  if (!(last > first) || !std::isfinite(last - first)) return ticks;
  const double rough = (last - first) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough) break;
  }
  if (!(step > 0)) return ticks;
  const double start = std::ceil(first / step - 1e-9);
  for (int i = 0; i < 50; ++i) {
    const double tick = (start + i) * step;
    if (tick > last + 1e-9 * step) break;
    ticks.push_back(tick + 0.0);  // -0 would be labelled so
  }
  return ticks;
}

}  // namespace dosa::app
