#include "help.hpp"

#include <string_view>
#include <vector>

#include "contract/text.hpp"
#include "suggest.hpp"

namespace dosa::app {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kTextColumn = 30;

std::string wrapped(std::string_view text, std::size_t width) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    while (line.size() > width && line.front() != ' ') {
      std::size_t space = line.rfind(' ', width);
      if (space == std::string_view::npos) space = line.find(' ');
      if (space == std::string_view::npos) break;
      out.append(line.substr(0, space)).push_back('\n');
      line.remove_prefix(space + 1);
    }
    out.append(line);
    if (end == std::string_view::npos) break;
    out.push_back('\n');
    text.remove_prefix(end + 1);
  }
  return out;
}

class Layout final : public CLI::Formatter {
 public:
  Layout() { column_width(kTextColumn); }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option), kColumns - kTextColumn);
  }
  // What an option excludes stands in its text: a list of names would not fit the line.
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string opts = CLI::Formatter::make_option_opts(option);
    return opts.substr(0, opts.find(" Excludes:"));
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(CLI::Formatter::make_description(app), kColumns);
  }
  std::string make_footer(const CLI::App* app) const override {
    return wrapped(CLI::Formatter::make_footer(app), kColumns);
  }
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

std::shared_ptr<CLI::Formatter> help_layout() { return std::make_shared<Layout>(); }

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  const auto parsed = app.get_subcommands();
  if (!parsed.empty()) command = parsed.front();
  std::vector<std::string> subcommands;
  for (const CLI::App* sub : app.get_subcommands({})) subcommands.push_back(sub->get_name());

  const std::string path = command == &app ? "dosa" : "dosa " + command->get_name();
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty() && error.get_name() != "ValidationError" && error.get_name() != "ConversionError") {
    const std::string& word = unknown.front();
    if (word.starts_with('-')) {
      std::vector<std::string> names;
      for (const CLI::Option* option : command->get_options()) {
        for (const auto& name : option->get_lnames()) names.push_back("--" + name);
      }
      const std::string meant = did_you_mean(word, names);
      return text::format("found '{}', wanted an option that {} --help lists{}", word, path,
                          meant.empty() ? "" : "; " + meant);
    }
    if (command == &app) {
      const std::string meant = did_you_mean(word, subcommands);
      return text::format("found '{}', wanted a subcommand: {}{}", word, joined(subcommands),
                          meant.empty() ? "" : "; " + meant);
    }
    return text::format("found '{}', which {} has no use for ({} --help)", word, path, path);
  }
  if (command == &app && error.get_name() == "RequiredError") {
    return text::format("found no subcommand, wanted one of {} (dosa --help)", joined(subcommands));
  }
  std::string text = error.what();
  // CLI11's own words for what is missing, said as everything else is.
  constexpr std::string_view kRequired = " is required", kMissing = " missing", kMany = " required ";
  if (text.ends_with(kRequired)) {
    text = text::format("found no {}, wanted one", text.substr(0, text.size() - kRequired.size()));
  } else if (const std::size_t colon = text.find(": "), many = text.find(kMany);
             text.ends_with(kMissing) && colon != std::string::npos && many != std::string::npos) {
    const std::size_t value = many + kMany.size();
    text = text::format("{}: found no {}, wanted one", text.substr(0, colon),
                        text.substr(value, text.size() - kMissing.size() - value));
  }
  constexpr std::string_view kConvert = "Could not convert: ";
  if (const std::size_t equals = text.find(" = "); text.starts_with(kConvert) && equals != std::string::npos) {
    text = text::format("{}: found '{}', wanted a whole number", text.substr(kConvert.size(), equals - kConvert.size()),
                        text.substr(equals + 3));
  }
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text::format("{} ({} --help)", text, path);
}

}  // namespace dosa::app
