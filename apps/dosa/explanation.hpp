// What happened to the keys of the rows looked at, folded into distributions that a table or a picture can show.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "call.hpp"
#include "picture.hpp"
#include "report.hpp"
#include "row_analysis.hpp"

namespace dosa::app {

/// scouted: scored to find the threshold, though its bound turned out to lie below it.
enum class KeyFate : std::uint8_t { rejected, scouted, scored, winner };

/// One key in the score-bound plane. Where several rows share the plane, a score is relative to its row's K-th score
/// and a bound to the threshold of its row, so that the two limits of all rows coincide.
struct KeyPoint {
  float score, upper;
  KeyFate fate;
};

struct Explanation {
  std::string trace;
  Shape shape;
  Call call;                       ///< of all rows, row reports included
  std::vector<std::int64_t> rows;  ///< the rows looked at

  std::int64_t bounded_rows = 0;                                          ///< rows that have a bound to look at
  std::int64_t competing = 0, winners = 0, survivors = 0, unbounded = 0;  ///< keys of the bounded rows
  std::vector<double> gaps;      ///< K-th score minus the threshold used: dosa rows of the call, or those looked at
  std::vector<double> slacks;    ///< upper bound minus score: finite ones of the keys looked at, every `stride`-th
  std::vector<KeyPoint> points;  ///< the same keys
  std::int64_t stride = 1;
  std::vector<double> score_std, kth_scores, thresholds;                ///< one a row looked at
  std::vector<double> positive_heads, negative_heads;                   ///< one a row
  std::vector<double> positive_active_winners, positive_active_others;  ///< shares, one a row
  std::vector<double> negative_active_winners, negative_active_others;

  // Along the key axis: bins of equal width over 0..N.
  std::vector<KeyBin> bins;

  // Dot products of the rows looked at, by what they were for.
  double dense_dots = 0, retained_dots = 0, aggregate_dots = 0, refinement_dots = 0;

  [[nodiscard]] bool single() const noexcept { return rows.size() == 1; }
};

/// Selects for all rows of the problem and looks at `rows` (ascending). The reference backend bounds nothing: no row of
/// it is looked at.
[[nodiscard]] Explanation explain_rows(const std::string& trace, const Problem& problem, const Options& options,
                                       std::span<const std::int64_t> rows, const std::string& progress);

/// Tau gap and slack, a line each, for tables of calls that looked at some rows only.
void describe_distances(const Explanation& e, Table& table, Json& json);

/// The picture: one SVG document.
[[nodiscard]] std::string explanation_svg(const Explanation& explanation);

}  // namespace dosa::app
