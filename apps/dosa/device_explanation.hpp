// What `dosa explain` can say of a call of the CUDA backend: every visible key is scored with all heads, so there are
// no bounds to look at; what the selection did is in the device's counters, and what it selected in the result.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "call.hpp"
#include "console.hpp"
#include "dosa/device_counters.hpp"
#include "picture.hpp"

namespace dosa::app {

struct DeviceExplanation {
  std::string trace;
  Shape shape;
  Options options;                 ///< as the plan resolved them
  std::vector<std::int64_t> rows;  ///< the rows looked at

  // Of the whole call: the device does not count by row.
  DeviceCounters counters{};
  std::int64_t call_rows = 0, call_visible = 0, call_selected = 0;

  // Of the rows looked at.
  std::int64_t visible = 0, selected = 0;
  std::int64_t whole_rows = 0;      ///< rows that see no more than K keys
  std::vector<double> last_scores;  ///< K-th score of rows that select K of more keys
  std::vector<KeyBin> bins;         ///< nothing is `scored` alone: every key is

  [[nodiscard]] bool single() const noexcept { return rows.size() == 1; }
};

/// Looks at `rows` (ascending) of a call that selected all rows of the problem with scores, absolute indices and no
/// forced keys. Counters that the call does not have (no rows) are zero.
[[nodiscard]] DeviceExplanation explain_device(const std::string& trace, const Problem& problem, const Call& call,
                                               std::span<const std::int64_t> rows);

void describe_device(const DeviceExplanation& e, Table& table, Json& json);

/// The picture: one SVG document.
[[nodiscard]] std::string device_explanation_svg(const DeviceExplanation& e);

}  // namespace dosa::app
