// How the command line talks about itself: help that fits a terminal, and usage errors of one line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace dosa::app {

/// Lays descriptions, option texts and footers out in 100 columns. Lines of a footer that are indented are commands to
/// paste: they stay as they are.
[[nodiscard]] std::shared_ptr<CLI::Formatter> help_layout();

/// What is wrong with the command line, in one line. A word that nothing asked for comes before what is missing: it is
/// usually the misspelt reason.
[[nodiscard]] std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace dosa::app
