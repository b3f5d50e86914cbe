// One function a subcommand, each in the file of its name. A function adds the subcommand; its callback does the work
// and leaves the exit code in `status`. Errors leave it as exceptions.
#pragma once

#include <CLI/CLI.hpp>

#include "exit_code.hpp"

namespace dosa::app {

void add_info(CLI::App& app, ExitCode& status);
void add_select(CLI::App& app, ExitCode& status);
void add_score(CLI::App& app, ExitCode& status);
void add_verify(CLI::App& app, ExitCode& status);
void add_explain(CLI::App& app, ExitCode& status);
void add_synth(CLI::App& app, ExitCode& status);
void add_bench(CLI::App& app, ExitCode& status);

}  // namespace dosa::app
