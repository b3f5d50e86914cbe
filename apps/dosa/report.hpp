// The figures of a call, for people and as JSON, the same in every subcommand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "call.hpp"
#include "console.hpp"
#include "dosa/plan.hpp"
#include "dosa/trace.hpp"

namespace dosa::app {

struct Quantiles {
  std::size_t count = 0;
  double min = 0, q1 = 0, median = 0, q3 = 0, max = 0;
};
/// Of the values that are not NaN; sorts them.
[[nodiscard]] Quantiles quantiles(std::vector<double> values);
[[nodiscard]] Json to_json(const Quantiles& q);
[[nodiscard]] Json to_json(const DeviceCounters& counters);
/// "0.41 (0.03 to 1.20)": median and range; "-" where there is no value.
[[nodiscard]] std::string text(const Quantiles& q, std::string_view unit = "");

/// What the trace is.
void describe_input(const Trace& trace, Table& table, Json& json);
/// What was asked and who computed.
void describe_engine(const Options& options, std::string_view why, Table& table, Json& json);
[[nodiscard]] Json options_json(const Options& options);
struct Explanation;

/// Survivors, tau gap and slack (of the rows that were looked at), dot products against dense, rows by path and why,
/// time, workspace.
void describe_stats(const Stats& stats, std::size_t workspace_bytes, const Explanation* looked, Table& table,
                    Json& json);

/// `count` rows spread evenly over `rows`, or all of them.
[[nodiscard]] std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t count);

/// "29 dosa, 3 dense".
[[nodiscard]] std::string rows_by_path(const Stats& stats);

}  // namespace dosa::app
