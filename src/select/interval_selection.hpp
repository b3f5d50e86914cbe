// Selecting from proven intervals: which candidates are certain, which are out, which need their score (T9, T10 of
// docs/certificate.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "contract/total_order.hpp"

namespace dosa {

/// Candidates of one row: lower[j] <= score of key[j] <= upper[j], -inf where no lower bound is known (such a key may
/// turn out not to be selectable); neither bound is NaN.
struct Intervals {
  const float* lower;
  const float* upper;
  std::int32_t* key;
  std::int64_t count;
};

/// T9 b: K keys whose lower bounds reach tau; a key whose upper bound equals tau loses to all of them when its index is
/// larger than theirs. The largest index of such K keys; no limit where nothing ties with tau.
[[nodiscard]] inline std::int32_t last_index_that_ties(const Intervals& candidates, std::int64_t wanted, float tau) {
  unsigned ties = 0;  // without a branch: nearly always the whole row is looked through
  for (std::int64_t j = 0; j < candidates.count; ++j) ties |= candidates.upper[j] == tau ? 1U : 0U;
  if (tau == -std::numeric_limits<float>::infinity() || ties == 0) return std::numeric_limits<std::int32_t>::max();
  std::int32_t last = -1;
  const auto take = [&](const auto& belongs) {
    for (std::int64_t j = 0; j < candidates.count && wanted > 0; ++j) {
      if (!belongs(candidates.lower[j])) continue;
      last = std::max(last, candidates.key[j]);
      --wanted;
    }
  };
  take([&](float lower) { return lower > tau; });
  take([&](float lower) { return lower == tau; });
  return last;
}

struct Decided {
  std::int64_t certain;  ///< selected without a score: first in entries, score = lower bound
  std::int64_t open;     ///< to be scored: compact at the front of candidates.key
};

/// `wanted` = K. `above`: the (K+1)-th largest upper bound, `below`: the K-th largest lower bound; -inf for both where
/// there are no more than K candidates. A candidate above the one is selected (T9 c), one below the other is not (T9 a,
/// b). `entries` has room for all candidates, or for wanted + 1 where that is less.
[[nodiscard]] inline Decided decide(const Intervals& candidates, std::int64_t wanted, float above, float below,
                                    Entry* entries) {
  const std::int32_t last_tie = last_index_that_ties(candidates, wanted, below);
  Decided decided{0, 0};
  for (std::int64_t j = 0; j < candidates.count; ++j) {
    const std::int32_t key = candidates.key[j];
    const float lower = candidates.lower[j], upper = candidates.upper[j];
    const int certain = lower > above ? 1 : 0;
    const int reaches = upper > below ? 1 : 0, ties = upper == below ? 1 : 0, early = key <= last_tie ? 1 : 0;
    // Written either way and kept where it counts: about half are open under sm90, which no branch foresees.
    entries[decided.certain] = {lower, key};
    candidates.key[decided.open] = key;
    decided.certain += certain;
    decided.open += (reaches | (ties & early)) & (1 - certain);
  }
  return decided;
}

}  // namespace dosa
