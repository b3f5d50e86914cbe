// Options that several subcommands share, with one wording each.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "console.hpp"
#include "dosa/plan.hpp"
#include "dosa/trace.hpp"

namespace dosa::app {

/// IN and --rows.
struct TraceArguments {
  std::string path;
  std::optional<std::string> rows;

  void add(CLI::App& command);
  [[nodiscard]] Trace open() const;
};

/// Row numbers of "a:b", "a:b:step", "a", or a list of these with commas; b is not included. Throws Error{usage}.
[[nodiscard]] std::vector<std::int64_t> parse_rows(const std::string& text, std::int64_t available);

/// What the engine is asked for. Which options a subcommand shows is its choice: add_* once each.
struct EngineArguments {
  Options options;

  void add_top_k(CLI::App& command, bool required = true);
  void add_model(CLI::App& command);
  void add_backend(CLI::App& command);
  void add_path(CLI::App& command);
  void add_result(CLI::App& command);       ///< --order, --index-base, --always-first, --always-last
  void add_machine(CLI::App& command);      ///< --isa, --threads
  void add_certificate(CLI::App& command);  ///< --r, --without, --absolute-form
};

/// What a library's error says without the "path: " in front, where the option's name already stands there.
[[nodiscard]] std::string without_subject(std::string_view message);

/// --json FILE.
void add_json(CLI::App& command, JsonOutput& output);

/// Asked before the work: throws Error{usage} where an output would replace the input or both outputs are one file, and
/// Error{io} where one could not be written. Empty paths are outputs nobody asked for.
void check_outputs(const std::string& in, const std::string& out, const JsonOutput& json);

/// Throws Error{usage} where results of that size cannot fit this machine's memory: an allocation of that size may
/// succeed and end in the process being killed.
void check_memory(double bytes, std::string_view what);

}  // namespace dosa::app
