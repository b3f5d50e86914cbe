// The shape of many numbers in four lines of a table.
#pragma once

#include <string>
#include <vector>

#include "console.hpp"

namespace dosa::app {

/// Rows `label` of the table: what the values mean, quartiles, a histogram as text, the median in `unit` where that is
/// positive. `json` gets quantiles and histogram, null where every value is NaN.
void describe_distribution(const std::string& label, const std::string& meaning, const std::vector<double>& values,
                           double unit, Table& table, Json& json);

}  // namespace dosa::app
