// A problem made of another one's rows: any subset, any order, any repetition; the keys are shared.
#pragma once

#include <cstdint>
#include <vector>

#include "dosa/problem.hpp"
#include "support/oracle.hpp"

namespace dosa::test {

class PickedRows {
 public:
  PickedRows(const Problem& original, const std::vector<std::int64_t>& rows);
  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }

 private:
  std::vector<std::uint8_t> q_;
  std::vector<float> weights_;
  std::vector<std::int32_t> ks_, ke_, requests_;
  Problem problem_;
};

/// The same rows of a result.
[[nodiscard]] Result pick(const Result& result, const std::vector<std::int64_t>& rows);

}  // namespace dosa::test
