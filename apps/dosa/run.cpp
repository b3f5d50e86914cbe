// dosa: the command line, from its words to its exit code.
#include "run.hpp"

#include <cstdio>
#include <exception>
#include <new>

#include "commands.hpp"
#include "console.hpp"
#include "dosa/types.hpp"
#include "help.hpp"

namespace dosa::app {
namespace {

int fail(ExitCode code, const char* message) noexcept {
  (void)std::fprintf(stderr, "dosa: %s\n", message);
  return code;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{
      "Exact Top-K selection for the lightning indexer of DeepSeek Sparse Attention.\n"
      "The keys returned are those that scoring every key would return, byte for byte; a certificate proves which "
      "keys need no score."};
  app.set_version_flag("--version", "dosa " DOSA_VERSION, "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  app.formatter(help_layout());  // before the subcommands, which inherit it
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dosa info\n"
      "  dosa select data/sample_en_l03_h32.safetensors --top-k 256 --out selected.safetensors\n"
      "  dosa explain data/sample_en_l03_h32.safetensors --top-k 256 --svg what-happened.svg\n"
      "\n"
      "Exit codes: 0 success, 1 internal or I/O, 2 usage, 3 bad input, 4 mismatch, 5 backend not available.");
  ExitCode status = kSuccess;
  add_info(app, status);
  add_select(app, status);
  add_score(app, status);
  add_verify(app, status);
  add_explain(app, status);
  add_synth(app, status);
  add_bench(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" of code 0; every other one is the caller's usage.
    if (error.get_exit_code() != 0) return fail(kUsage, usage_error(app, error).c_str());
    app.exit(error);
    return kSuccess;
  }
  return status;
}

}  // namespace

int run(int argc, char** argv) {
  int status = kFailure;
  set_command_line(argc, argv);
  try {
    status = parse_and_run(argc, argv);
  } catch (const Error& error) {
    return fail(exit_code(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailure, "out of memory; --rows takes a part of the rows");
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  } catch (...) {
    return fail(kFailure, "unknown error");
  }
  if (std::fflush(stdout) != 0) return fail(kFailure, "cannot write to standard output");
  return status;
}

}  // namespace dosa::app
