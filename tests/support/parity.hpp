// Byte equality of every backend, instruction set, path and thread count with the oracle, under drawn circumstances.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dosa/plan.hpp"
#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "workloads/random.hpp"

namespace dosa::test {

/// DOSA_TEST_FULL=1: the nightly sizes.
[[nodiscard]] bool full_sizes();

/// A build ten times slower than a release (sanitizers): fewer draws of the same kinds.
[[nodiscard]] bool slow_build();

/// DOSA_TEST_SEED: other draws than the usual ones (0, the default, in continuous integration).
[[nodiscard]] std::uint64_t test_seed();

/// Instruction sets that this machine runs.
[[nodiscard]] std::vector<Isa> runnable_isas();

/// Holds one problem and its oracle, and runs it again and again.
class Parity {
 public:
  Parity(const Problem& problem, std::int64_t top_k, std::string what);

  /// One run: the result must be the oracle's, byte for byte; nothing outside the outputs may be touched.
  /// Options that change the answer (order, base, forced keys, scores, K) and those that must not (threads, ablation,
  /// r, row order, alignment, carry, workspace) are drawn from `random`; `fixed` gives backend, isa, path and model.
  void run_drawn(const Options& fixed, workloads::Random& random);

  /// Every backend, instruction set, path and model, `draws` times each.
  void run_all(workloads::Random& random, int draws = 1);

  /// One run of exactly these options.
  void run_exactly(const Options& options, const Surroundings& around = {});

 private:
  [[nodiscard]] const ScoreTable& table(ScoreModel model);

  const Problem& problem_;
  std::int64_t top_k_;
  std::string what_;
  std::vector<ScoreTable> tables_;  ///< f64, sm90
  std::vector<std::byte> carry_;    ///< lives from run to run, sometimes damaged
};

}  // namespace dosa::test
