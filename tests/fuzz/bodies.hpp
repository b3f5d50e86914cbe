// What a fuzzer's bytes mean. The same bodies run under libFuzzer and, over kept inputs and a fixed stream, as a test.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dosa::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Target {
  const char* name;
  /// Nothing where all is well; else what went wrong. Memory errors are the sanitizers' business.
  std::optional<std::string> (*run)(std::span<const std::uint8_t> bytes);
  /// Inputs to start from, made from the named workloads.
  std::vector<Bytes> (*seeds)();
};

[[nodiscard]] const Target& trace_target();   ///< bytes of a trace file
[[nodiscard]] const Target& parity_target();  ///< a workload, its mutations and options: every run equals the oracle
[[nodiscard]] const Target& merge_target();   ///< partial results, honest or not

}  // namespace dosa::fuzz
