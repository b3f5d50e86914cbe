// A run with what happened to each of its rows.
#pragma once

#include "dosa/plan.hpp"

namespace dosa::test {

/// The statistics of one run, row reports included; the selection itself is dropped.
[[nodiscard]] Stats run_with_reports(const Problem& problem, const Options& options);

}  // namespace dosa::test
