// What a person sees: tables on standard output, progress on a terminal's standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dosa::app {

using Json = nlohmann::ordered_json;

/// The command as it was given, words quoted where a shell needs it: a table's heading can be pasted and repeated.
void set_command_line(int argc, const char* const* argv);
[[nodiscard]] const std::string& command_line();

/// Label and value, aligned; an empty label continues the row above.
class Table {
 public:
  explicit Table(std::string title) : title_(std::move(title)) {}
  void row(std::string label, std::string value) { rows_.emplace_back(std::move(label), std::move(value)); }
  [[nodiscard]] std::string text() const;

 private:
  std::string title_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

/// Columns of text; the first is left aligned, the others right aligned.
[[nodiscard]] std::string grid(const std::vector<std::vector<std::string>>& rows);

[[nodiscard]] std::string human_bytes(double bytes);                           ///< "3.4 MiB"
[[nodiscard]] std::string human_seconds(double seconds);                       ///< "12.3 ms"
[[nodiscard]] std::string human_count(double count);                           ///< "65,536"
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);  ///< "1 row", "65,536 rows"
[[nodiscard]] std::string percent(double part, double whole);                  ///< "5.6 %"; "-" where there is no whole

/// "done of total" on standard error while long work runs: only on a terminal, only once it takes a while.
class Progress {
 public:
  Progress(std::string what, std::int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  void update(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::int64_t total_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_, last_;
};

/// A JSON file; "-" is standard output, which then carries nothing else.
struct JsonOutput {
  std::string path;
  [[nodiscard]] bool on_stdout() const noexcept { return path == "-"; }
  /// Writes the JSON where one was asked for, and prints `table` unless the JSON took standard output.
  void finish(const Json& json, std::string_view table) const;
};

}  // namespace dosa::app
