// The selection as docs/contract.md words it, in code of its own: nothing of src/contract is used here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dosa/plan.hpp"
#include "dosa/problem.hpp"

namespace dosa::test {

/// What a call returned, or has to return.
struct Result {
  std::int64_t rows = 0, top_k = 0;
  std::vector<std::int32_t> indices, lengths;  ///< [rows * top_k], [rows]
  std::vector<float> scores;                   ///< [rows * top_k], empty where not asked for
};

/// Scores of all visible keys under one model, rows x keys of the view; other places hold NaN.
class ScoreTable {
 public:
  ScoreTable(const Problem& problem, ScoreModel model, std::optional<Shard> shard = std::nullopt);
  [[nodiscard]] float at(std::int64_t row, std::int64_t key) const {
    return scores_[static_cast<std::size_t>(row * keys_ + key)];
  }

 private:
  std::int64_t keys_;
  std::vector<float> scores_;
};

/// The one right answer. `options.backend`, path, isa and threads play no part.
[[nodiscard]] Result expected(const Problem& problem, const Options& options, const ScoreTable& table);
[[nodiscard]] Result expected(const Problem& problem, const Options& options);

/// Nothing where both are equal bit for bit (the sign of a zero score counts); else the first difference, in words.
[[nodiscard]] std::optional<std::string> difference(const Result& wanted, const Result& found);

/// One sentence that names the options of a run in a failure message.
[[nodiscard]] std::string describe(const Options& options);

[[nodiscard]] std::int64_t keys_of(const Problem& problem);

/// Options that ask for K and nothing else.
[[nodiscard]] inline Options top(std::int64_t top_k, Backend backend = Backend::reference) {
  Options options;
  options.top_k = top_k;
  options.backend = backend;
  return options;
}

}  // namespace dosa::test
