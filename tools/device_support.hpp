// What the device tools share: oracle runs, comparison byte for byte, JSON lines.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "contract/text.hpp"
#include "cuda/staging.hpp"
#include "dosa/dosa.hpp"

namespace dosa::tools {

/// How a result file begins: what ran, on what. Not closed: its entries follow.
inline std::string json_head(const std::string& commit, const std::string& conditions) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, 0), "properties");
  int driver = 0;
  cuda::check(cudaDriverGetVersion(&driver), "driver");
  return text::format(
      "{{\"device\": \"{}\", \"multiprocessors\": {}, \"driver\": {}, \"runtime\": {}, \"commit\": \"{}\",\n"
      " \"conditions\": \"{}\",\n",
      properties.name, properties.multiProcessorCount, driver, CUDART_VERSION, commit, conditions);
}

/// Empty where both are the same bytes; else the first difference in words.
inline std::string difference(const OwnedSelection& wanted, const OwnedSelection& found) {
  for (std::size_t t = 0; t < wanted.lengths.size(); ++t)
    if (wanted.lengths[t] != found.lengths[t])
      return text::format("row {}: length {}, wanted {}", t, found.lengths[t], wanted.lengths[t]);
  for (std::size_t i = 0; i < wanted.indices.size(); ++i)
    if (wanted.indices[i] != found.indices[i])
      return text::format("row {} slot {}: index {}, wanted {}", i / static_cast<std::size_t>(wanted.top_k),
                          i % static_cast<std::size_t>(wanted.top_k), found.indices[i], wanted.indices[i]);
  for (std::size_t i = 0; i < wanted.scores.size(); ++i)
    if (std::bit_cast<std::uint32_t>(wanted.scores[i]) != std::bit_cast<std::uint32_t>(found.scores[i]))
      return text::format("row {} slot {}: score {:08x}, wanted {:08x}", i / static_cast<std::size_t>(wanted.top_k),
                          i % static_cast<std::size_t>(wanted.top_k), std::bit_cast<std::uint32_t>(found.scores[i]),
                          std::bit_cast<std::uint32_t>(wanted.scores[i]));
  return "";
}

/// Counts what was compared and prints what differs (the first few of a kind).
class Tally {
 public:
  /// Names what runs next on standard error, where that was asked for: what hangs is then known.
  void begins(const std::string& what) const {
    if (progress) text::print(stderr, "{}\n", what);
  }
  bool progress = false;

  void expect(const std::string& what, const std::string& wrong) {
    ++compared_;
    if (wrong.empty()) return;
    if (++wrong_ <= 40) text::print(stdout, "DIFFERS {}: {}\n", what, wrong), std::fflush(stdout);
  }
  [[nodiscard]] long compared() const { return compared_; }
  [[nodiscard]] long wrong() const { return wrong_; }
  void section(const std::string& name) {
    const auto now = std::chrono::steady_clock::now();
    text::print(stdout, "{:<28} {:>7} compared {:>5} differ {:>7.1f} s\n", name, compared_ - seen_,
                wrong_ - seen_wrong_, std::chrono::duration<double>(now - since_).count());
    std::fflush(stdout);
    sections_ += text::format("{}  {{\"name\": \"{}\", \"compared\": {}, \"differ\": {}, \"seconds\": {:.1f}}}",
                              sections_.empty() ? "" : ",\n", name, compared_ - seen_, wrong_ - seen_wrong_,
                              std::chrono::duration<double>(now - since_).count());
    seen_ = compared_, seen_wrong_ = wrong_, since_ = now;
  }
  /// Of a JSON array: what the sections came to.
  [[nodiscard]] const std::string& sections() const { return sections_; }

 private:
  std::string sections_;
  long compared_ = 0, wrong_ = 0, seen_ = 0, seen_wrong_ = 0;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace dosa::tools
