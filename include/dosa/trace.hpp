// Trace files: a captured indexer call in one safetensors file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dosa/export.hpp"
#include "dosa/problem.hpp"

namespace dosa DOSA_PUBLIC {

/// A memory-mapped trace: q F8_E4M3 [Q,H,D], k F8_E4M3 [N,D], k_scale F32 [N], weights F32 [Q,H], ks and ke I32 [Q].
/// Other tensors are ignored. Every size, offset and dtype is checked before anything is read.
class Trace {
 public:
  /// Throws Error{io} or Error{bad_input}; the message names the tensor, what was found and what was wanted.
  [[nodiscard]] static Trace open(const std::filesystem::path& path);
  /// The same checks over bytes in memory (what the fuzzer drives). The bytes must outlive the trace.
  [[nodiscard]] static Trace from_bytes(std::span<const std::byte> bytes, const std::string& name);

  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// The rows named (in that order), sharing the keys: views into copies this object owns.
  [[nodiscard]] Trace rows(std::span<const std::int64_t> rows) const;

 private:
  Problem problem_;
  std::map<std::string, std::string> metadata_;
  std::string name_;
  std::vector<std::shared_ptr<const void>> owners_;  ///< the mapping, copies of rows
};

/// Writes a trace file. Keys must be contiguous (paged keys are gathered by the caller). Throws Error{io}.
void write_trace(const std::filesystem::path& path, const Problem& problem,
                 const std::map<std::string, std::string>& metadata = {});

}  // namespace DOSA_PUBLIC
