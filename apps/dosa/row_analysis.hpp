// One row under the microscope: every competing key's score and upper bound, as the engine computes them.
#pragma once

#include <cstdint>
#include <vector>

#include "dosa/plan.hpp"

namespace dosa::app {

struct RowAnalysis {
  std::int64_t row = 0;
  RowReport report;  ///< of the call that selected, not of this look

  // Heads by the sign of their weight, and the share of keys whose dot product with them is positive.
  int positive_heads = 0, negative_heads = 0, zero_heads = 0;
  double positive_active_winners = 0, positive_active_others = 0;
  double negative_active_winners = 0, negative_active_others = 0;

  std::int64_t first_key = 0;  ///< sequence index of scores[0]
  std::int64_t winners = 0;    ///< competing keys that are selected: those with a score not after `kth`
  std::int32_t kth_index = -1;
  float kth_score = 0;   ///< tau*: score of the last winner
  float threshold = 0;   ///< tau the call rejected with; -inf where it rejected nothing
  double score_std = 0;  ///< over finite scores
  bool bounded = false;  ///< the certificate screened this row; else `upper` is empty
  float cut = 0;         ///< keys whose bound is not below this were scored (at or below the threshold: best first)
  std::int64_t unbounded = 0;       ///< keys whose bound is +inf (they always survive)
  std::vector<float> score, upper;  ///< [competing keys]

  [[nodiscard]] bool wins(std::size_t i) const noexcept {
    return score[i] > kth_score || (score[i] == kth_score && static_cast<std::int64_t>(i) + first_key <= kth_index);
  }
};

/// Looks at row `t` of a call that was made: `options` as its plan resolved them, `report` its report of the row,
/// `upper` the bounds it screened the row's competing keys with (empty where the row was not certified). Throws
/// Error{internal} where a bound lies below its score: that is what the certificate excludes.
[[nodiscard]] RowAnalysis analyse_row(const Problem& problem, const Options& options, std::int64_t t,
                                      const RowReport& report, std::vector<float> upper);

}  // namespace dosa::app
