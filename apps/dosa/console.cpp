#include "console.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "contract/text.hpp"
#include "trace/output_file.hpp"

namespace dosa::app {

namespace {

std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string& given_command() {
  static std::string command;
  return command;
}

}  // namespace

void set_command_line(int argc, const char* const* argv) {
  std::string& command = given_command();
  command.clear();
  for (int i = 0; i < argc; ++i) {
    if (i > 0) command += ' ';
    command += shell_quoted(argv[i]);
  }
}

const std::string& command_line() { return given_command(); }

std::string Table::text() const {
  std::size_t width = 0;
  for (const auto& [label, value] : rows_) width = std::max(width, label.size());
  std::string text = title_ + "\n\n";
  for (const auto& [label, value] : rows_) text += text::format("  {:<{}}  {}\n", label, width, value);
  return text;
}

std::string grid(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? text::format("{:<{}}", row[i], widths[i]) : text::format("  {:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string human_bytes(double bytes) {
  static constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return unit == 0 ? text::format("{:.0f} bytes", bytes) : text::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 1e-3) return text::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return text::format("{:.2f} ms", seconds * 1e3);
  return text::format("{:.2f} s", seconds);
}

std::string human_count(double count) {
  const std::string digits = text::format("{:.0f}", std::abs(count));
  std::string text = count < 0 ? "-" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return text::format("{} {}{}", human_count(static_cast<double>(count)), noun, count == 1 ? "" : "s");
}

std::string percent(double part, double whole) {
  if (!(whole > 0)) return "-";
  const double share = 100 * part / whole;
  return share != 0 && share < 0.1 ? text::format("{:.3f} %", share) : text::format("{:.1f} %", share);
}

Progress::Progress(std::string what, std::int64_t total)
    : what_(std::move(what)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (shown_) (void)std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::int64_t done) {
  if (!terminal_) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  // Short work shows nothing, and a terminal is not redrawn faster than it is read.
  if (elapsed < 0.5 || std::chrono::duration<double>(now - last_).count() < 0.1) return;
  last_ = now;
  shown_ = true;
  const double left = done > 0 ? elapsed * static_cast<double>(total_ - done) / static_cast<double>(done) : 0;
  text::print(stderr, "\r\x1b[K{}: {} of {} ({:.0f} %, about {:.0f} s left)", what_, done, total_,
              100 * static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total_, 1)),
              std::ceil(left));
  (void)std::fflush(stderr);
}

void JsonOutput::finish(const Json& json, std::string_view table) const {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (!path.empty() && !on_stdout()) {
    OutputFile file(path);
    file.write(text);
    file.commit();
  }
  text::print(stdout, "{}", on_stdout() ? std::string_view(text) : table);
}

}  // namespace dosa::app
