// dosa select: the K keys of every row.

#include <memory>

#include "arguments.hpp"
#include "commands.hpp"
#include "contract/text.hpp"
#include "explanation.hpp"
#include "report.hpp"
#include "result_file.hpp"

namespace dosa::app {
namespace {

struct SelectArguments {
  TraceArguments trace;
  EngineArguments engine;
  std::string out;
  JsonOutput json;
};

void run_select(const SelectArguments& arguments) {
  check_outputs(arguments.trace.path, arguments.out, arguments.json);
  const Trace trace = arguments.trace.open();
  // Slack needs a row's scores: a few rows tell, after their time was taken.
  const auto looked_at = spread_rows(trace.problem().q.shape[0], 4);
  const Explanation explanation =
      explain_rows(trace.name(), trace.problem(), arguments.engine.options, looked_at, "select");
  const Call& call = explanation.call;

  Table table(command_line());
  Json json{{"command", "select"}, {"version", DOSA_VERSION}};
  describe_input(trace, table, json);
  describe_engine(call.options, call.why, table, json);
  describe_stats(call.selection.stats, call.workspace_bytes, &explanation, table, json);
  if (!arguments.out.empty()) {
    write_result(arguments.out, call.selection, call.options, arguments.trace.rows.value_or(""));
    table.row("written",
              text::format("{}: indices I32 [{},{}], lengths I32 [{}]{}", arguments.out, call.selection.rows,
                           call.selection.top_k, call.selection.rows, call.options.scores ? ", scores F32" : ""));
    json["out"] = arguments.out;
  }
  arguments.json.finish(json, table.text());
}

}  // namespace

void add_select(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("select", "Select the K best keys of every row, exactly");
  auto arguments = std::make_shared<SelectArguments>();
  arguments->trace.add(*command);
  arguments->engine.add_top_k(*command);
  command
      ->add_option(
          "-o,--out", arguments->out,
          "Result (safetensors): indices I32 [Q,K] (-1 past a row's length), lengths I32 [Q], scores F32 [Q,K] "
          "with --scores. Without it only the table is printed")
      ->type_name("FILE");
  command->add_flag("--scores", arguments->engine.options.scores, "Write scores too");
  arguments->engine.add_model(*command);
  arguments->engine.add_backend(*command);
  arguments->engine.add_path(*command);
  arguments->engine.add_result(*command);
  arguments->engine.add_machine(*command);
  arguments->engine.add_certificate(*command);
  add_json(*command, arguments->json);
  command->footer(
      "The result is the same bytes on every machine, backend, path, instruction set and number of threads.\n"
      "Examples:\n"
      "  dosa select trace.safetensors --top-k 2048 --out selected.safetensors\n"
      "  dosa select trace.safetensors --top-k 2048 --order score --scores --rows 0:16 --out best.st");
  command->callback([arguments] { run_select(*arguments); });
}

}  // namespace dosa::app
