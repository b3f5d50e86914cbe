// Named hard inputs: one place that tests, fuzzers, benchmarks and `dosa synth` share. Most of them broke a shipped
// selector; each entry names the public thread it comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dosa/problem.hpp"

namespace dosa::workloads {

/// Every entry accepts any size within the contract (rows >= 1, keys >= 1). An entry that needs more heads, rows or
/// keys to be itself takes more: read the sizes back from the problem.
struct Size {
  std::int64_t rows = 4;
  std::int64_t keys = 4096;
  std::int32_t heads = 4;
  std::int32_t head_dim = 32;
  std::int64_t top_k = 64;
  std::uint64_t seed = 1;
};

/// A problem and the memory its views point to. Copies share the memory, which nobody writes.
struct Workload {
  std::string name;
  Problem problem;
  std::int64_t top_k = 0;  ///< the K that makes the input hard
  /// Score of key i in every row that sees it, under both score models, bit for bit (NaN: any payload;
  /// zero: either sign, which padded heads of sm90 can flip). Empty where the
  /// construction does not fix the scores.
  std::vector<float> known_scores;
  std::vector<std::shared_ptr<const void>> owners;
};

enum class Family : std::uint8_t { scores, layout, values, certificate };

struct Entry {
  std::string_view name;
  std::string_view description;  ///< one line: the input
  std::string_view thread;       ///< where it broke something ("" where nobody reported it)
  Family family;
  bool trace;        ///< contiguous keys and plain views: a trace file can hold it
  Size small, full;  ///< sizes for continuous integration, and those of the thread
  Workload (*make)(const Size& size);
};

/// All entries, by family. Names are unique.
[[nodiscard]] std::span<const Entry> registry();

/// Throws Error{usage} that lists the names.
[[nodiscard]] const Entry& find(std::string_view name);

/// entry.make with the size checked: throws Error{usage}. The workload carries the entry's name.
[[nodiscard]] Workload make(const Entry& entry, const Size& size);

/// How codes, scales and weights are drawn, for sweeps over values.
enum class Codes : std::uint8_t {
  uniform,     ///< over the 254 finite codes
  normal,      ///< N(0,1) quantised by the row's maximum
  heavy,       ///< heavy-tailed, quantised by the row's maximum
  largest,     ///< +-448
  subnormal,   ///< |v| < 2^-6
  one_hot,     ///< one non-zero code a row
  cancelling,  ///< pairs of opposite products: dots of zero or of one unit
  zero,
  straddling,  ///< magnitudes far apart, so that products fall on both sides of the served arithmetic's 13 kept bits
  with_nan,    ///< normal, NaN codes at 1 %
};
enum class Scales : std::uint8_t { one, positive, both_signs, ue8m0, special, tiny, huge };
enum class Weights : std::uint8_t { mixed, positive, negative, zeros, dominant, overflowing, subnormal, with_nan };
struct Recipe {
  Codes q = Codes::normal, k = Codes::normal;
  Scales scales = Scales::positive;
  Weights weights = Weights::mixed;
};
/// Contiguous keys, causal-like windows.
[[nodiscard]] Workload mix(const Size& size, const Recipe& recipe);

/// The same problem with its keys moved into pages of `page_size` tokens. Pages are shuffled when `shuffle`; a page is
/// followed by `gap` bytes that belong to nobody (a multiple of 4). What belongs to no key is poison.
[[nodiscard]] Workload paged(const Workload& contiguous, std::int32_t page_size, std::int64_t gap, bool shuffle,
                             std::uint64_t seed);

}  // namespace dosa::workloads
