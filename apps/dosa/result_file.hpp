// OUT: indices I32 [Q,K], lengths I32 [Q], scores F32 [Q,K] if asked. Its metadata says what was selected, never by
// whom, so that the same command gives the same bytes on every machine.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "dosa/plan.hpp"

namespace dosa::app {

[[nodiscard]] std::map<std::string, std::string> result_metadata(const Options& options, const std::string& rows);

/// Throws Error{io}. `rows`: the text of --rows, recorded where it is not empty.
void write_result(const std::filesystem::path& path, const OwnedSelection& selection, const Options& options,
                  const std::string& rows);

/// Reads a result of `rows` rows; top_k, model, order, index base and forced keys come from its tensors and metadata
/// and replace those in `options`. Throws Error{io, bad_input}.
[[nodiscard]] OwnedSelection read_result(const std::filesystem::path& path, std::int64_t rows, Options& options);

/// The text of --rows that a result was made with; empty: all rows, or a file that does not say. Throws Error{io,
/// bad_input}.
[[nodiscard]] std::string rows_of_result(const std::filesystem::path& path);

}  // namespace dosa::app
