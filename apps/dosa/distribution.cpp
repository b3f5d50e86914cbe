#include "distribution.hpp"

#include <algorithm>
#include <cmath>

#include "contract/text.hpp"
#include "report.hpp"

namespace dosa::app {
namespace {

struct Histogram {
  double first = 0, last = 0;
  std::vector<std::int64_t> counts;
};

Histogram histogram(const std::vector<double>& values, const Quantiles& q, std::size_t bins) {
  Histogram result{q.min, q.max, std::vector<std::int64_t>(bins)};
  if (q.count == 0) return result;
  const double width = q.max > q.min ? (q.max - q.min) / static_cast<double>(bins) : 1;
  for (const double value : values) {
    if (!std::isnan(value)) ++result.counts[std::min(bins - 1, static_cast<std::size_t>((value - q.min) / width))];
  }
  return result;
}

/// Eight heights of blocks: the shape of a distribution in one line of text.
std::string sparkline(const Histogram& histogram) {
  static constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::int64_t most =
      std::max<std::int64_t>(*std::max_element(histogram.counts.begin(), histogram.counts.end()), 1);
  std::string text;
  for (const std::int64_t count : histogram.counts) text += kBlocks[(8 * count + most - 1) / most];
  return text;
}

}  // namespace

void describe_distribution(const std::string& label, const std::string& meaning, const std::vector<double>& values,
                           double unit, Table& table, Json& json) {
  const Quantiles q = quantiles(values);
  if (q.count == 0) {
    table.row(label, "-");
    json = nullptr;
    return;
  }
  const Histogram shape = histogram(values, q, 32);
  table.row(label, meaning);
  table.row("", text::format("min {:.3g}   q1 {:.3g}   median {:.3g}   q3 {:.3g}   max {:.3g}", q.min, q.q1, q.median,
                             q.q3, q.max));
  if (unit > 0) table.row("", text::format("median {:.3g} of the scores' standard deviation", q.median / unit));
  if (q.count > 1 && std::isfinite(q.max - q.min)) {
    table.row("", text::format("{:.3g} |{}| {:.3g}", q.min, sparkline(shape), q.max));
  }
  json = to_json(q);
  json["histogram"] = {{"first", shape.first}, {"last", shape.last}, {"counts", shape.counts}};
}

}  // namespace dosa::app
