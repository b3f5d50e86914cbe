// dosa score: the score of every key, under a model, bit for bit.

#include <memory>

#include "arguments.hpp"
#include "call.hpp"
#include "commands.hpp"
#include "contract/text.hpp"
#include "report.hpp"
#include "trace/safetensors.hpp"

namespace dosa::app {
namespace {

constexpr double kAskAbove = 4.0 * 1024 * 1024 * 1024;

struct ScoreArguments {
  TraceArguments trace;
  EngineArguments engine;
  std::string out;
  bool yes = false;
  JsonOutput json;
};

void run_score(const ScoreArguments& arguments) {
  check_outputs(arguments.trace.path, arguments.out, arguments.json);
  const Trace trace = arguments.trace.open();
  const Shape shape = shape_of(trace.problem());
  const double bytes = 4.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.keys);
  if (bytes > kAskAbove && !arguments.yes) {
    throw Error(ErrorKind::usage,
                text::format("scores F32 [{},{}] take {}, more than 4 GiB: add --yes, or --rows for a part", shape.rows,
                             shape.keys, human_bytes(bytes)));
  }
  Options options = arguments.engine.options;
  options.top_k = 1;
  const Plan decided = plan(shape, options);
  std::map<std::string, std::string> metadata{{"format", "dosa scores"}, {"model", std::string(name(options.model))}};
  if (arguments.trace.rows) metadata["rows"] = *arguments.trace.rows;
  safetensors::Writer writer(arguments.out, {{"scores", "F32", {shape.rows, shape.keys}}}, metadata);

  // A quarter of a gibibyte at a time, so that memory does not grow with the file.
  constexpr std::int64_t kBufferFloats = std::int64_t{1} << 26;
  const std::int64_t batch = std::min(rows_per_batch(shape, decided.options()),
                                      std::max<std::int64_t>(kBufferFloats / std::max<std::int64_t>(shape.keys, 1), 1));
  std::vector<float> buffer;
  const auto start = std::chrono::steady_clock::now();
  Progress progress("score", shape.rows);
  for (std::int64_t first = 0; first < shape.rows; first += batch) {
    const std::int64_t count = std::min(batch, shape.rows - first);
    buffer.resize(static_cast<std::size_t>(count * shape.keys));
    scores(slice_rows(trace.problem(), first, count), options,
           TensorView<float, 2>::contiguous(buffer.data(), {count, shape.keys}));
    writer.append(std::span<const float>(buffer));
    progress.update(first + count);
  }
  writer.commit();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  Table table(command_line());
  Json json{{"command", "score"}, {"version", DOSA_VERSION}};
  describe_input(trace, table, json);
  describe_engine(decided.options(), decided.why(), table, json);
  table.row("time", text::format("{}, writing included", human_seconds(seconds)));
  table.row("written", text::format("{}: scores F32 [{},{}], {}; -inf outside a row's window", arguments.out,
                                    shape.rows, shape.keys, human_bytes(bytes)));
  json["seconds"] = seconds;
  json["out"] = arguments.out;
  arguments.json.finish(json, table.text());
}

}  // namespace

void add_score(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("score", "Write the score of every key in every row's window");
  auto arguments = std::make_shared<ScoreArguments>();
  arguments->trace.add(*command);
  arguments->engine.add_model(*command);
  command
      ->add_option("-o,--out", arguments->out,
                   "Result (safetensors): scores F32 [Q,N], -inf outside the window, NaN as 0x7fffffff")
      ->required()
      ->type_name("FILE");
  command->add_flag("--yes", arguments->yes, "Write more than 4 GiB");
  arguments->engine.add_backend(*command);
  arguments->engine.add_machine(*command);
  add_json(*command, arguments->json);
  command->footer(
      "Example:\n"
      "  dosa score trace.safetensors --rows 0:16 --out scores.safetensors");
  command->callback([arguments] { run_score(*arguments); });
}

}  // namespace dosa::app
