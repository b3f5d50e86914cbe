// dosa bench: every path of one instruction set and the reference, side by side.

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "arguments.hpp"
#include "call.hpp"
#include "commands.hpp"
#include "contract/text.hpp"
#include "cpu/peak.hpp"
#include "report.hpp"

namespace dosa::app {
namespace {

struct BenchArguments {
  std::vector<std::string> inputs;
  std::optional<std::string> rows;
  EngineArguments engine;
  std::vector<std::string> paths;
  int repeat = 7;
  std::int64_t reference_rows = 1;
  JsonOutput json;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// One path with memory of its own, so that a repetition is plan and run and nothing else.
struct Candidate {
  std::string label;
  Options options;
  OwnedSelection result;
  std::vector<std::byte> workspace;
  std::size_t workspace_bytes = 0;
  std::string why;
  std::vector<double> seconds;

  Candidate(std::string name, const Problem& problem, const Options& asked) : label(std::move(name)), options(asked) {
    const Plan decided = plan(shape_of(problem), options);
    options = decided.options();
    why = decided.why();
    workspace_bytes = decided.workspace_bytes();
    check_memory(4.0 * static_cast<double>(decided.shape().rows) * static_cast<double>(options.top_k), "results");
    workspace.resize(workspace_bytes);
    result.rows = decided.shape().rows;
    result.top_k = options.top_k;
    result.indices.resize(static_cast<std::size_t>(result.rows * result.top_k));
    result.lengths.resize(static_cast<std::size_t>(result.rows));
  }

  /// A complete call without a carry: what a caller pays the first time.
  double call(const Problem& problem) {
    Selection selection;
    selection.indices = TensorView<std::int32_t, 2>::contiguous(result.indices.data(), {result.rows, result.top_k});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(result.lengths.data(), {result.rows});
    Stats stats;
    const double start = now();
    const Plan decided = plan(shape_of(problem), options);
    run(decided, problem, selection, workspace, {}, &stats);
    const double elapsed = now() - start;
    result.stats = std::move(stats);
    return elapsed;
  }
};

Json seconds_json(const Quantiles& q) {
  return {{"median", q.median}, {"min", q.min}, {"q1", q.q1}, {"q3", q.q3}, {"max", q.max}, {"repeats", q.count}};
}

/// GFLOP/s of multiply-adds that this machine was measured to reach with this instruction set, all threads together.
double peak_gflops(Isa isa, int threads) { return threads * cpu::measured_peak(isa); }

// nlohmann's move constructor asserts, which the check takes for a throw.
struct InputResult {  // NOLINT(bugprone-exception-escape)
  Json json;
  std::string text;
  double certified_speedup = 0;
};

InputResult bench_input(const BenchArguments& arguments, const std::string& path, Progress& progress,
                        std::int64_t& done) {
  TraceArguments opened{path, arguments.rows};
  const Trace trace = opened.open();
  const Shape shape = shape_of(trace.problem());
  Options options = arguments.engine.options;
  const bool on_gpu = options.backend == Backend::cuda;
  if (!on_gpu) options.backend = Backend::cpu;

  std::vector<Candidate> candidates;
  for (const auto& word : arguments.paths) {
    options.path = parse_path(word);
    candidates.emplace_back(word, trace.problem(), options);
  }
  const int threads = candidates.front().options.threads;
  const Isa isa = candidates.front().options.isa;

  // The reference needs seconds a row where the paths need milliseconds: a few rows, and the time scaled by visible
  // keys.
  std::optional<Trace> few;
  std::vector<double> reference_seconds;
  double reference_share = 1;
  const std::int64_t reference_rows = std::min(
      shape.rows, arguments.reference_rows == 0 ? 0 : std::max<std::int64_t>(arguments.reference_rows, threads));
  if (reference_rows > 0) few = trace.rows(spread_rows(shape.rows, reference_rows));

  for (auto& candidate : candidates) candidate.call(trace.problem());
  const double peak = on_gpu ? 0 : peak_gflops(isa, threads);
  for (int repetition = 0; repetition < arguments.repeat; ++repetition) {
    // The order rotates: what one leaves in the caches and in the clock frequency is not always the same one's gain.
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      auto& candidate = candidates[(i + static_cast<std::size_t>(repetition)) % candidates.size()];
      candidate.seconds.push_back(candidate.call(trace.problem()));
      progress.update(++done);
    }
    if (few) {
      const Call call = call_reference(few->problem(), arguments.engine.options, threads, "");
      reference_seconds.push_back(call.selection.stats.seconds);
      const double visible = static_cast<double>(candidates.front().result.stats.visible);
      reference_share = visible > 0 ? static_cast<double>(call.selection.stats.visible) / visible : 1;
      progress.update(++done);
    }
  }
  for (const auto& candidate : candidates) {
    if (candidate.result.indices != candidates.front().result.indices ||
        candidate.result.lengths != candidates.front().result.lengths) {
      throw Error(ErrorKind::internal,
                  text::format("{}: paths {} and {} selected different keys; dosa verify shows where", trace.name(),
                               candidates.front().label, candidate.label));
    }
  }

  InputResult result;
  Json& json = result.json;
  json = {{"file", path},
          {"rows", shape.rows},
          {"keys", shape.keys},
          {"heads", shape.heads},
          {"head_dim", shape.head_dim},
          {"isa", name(isa)},
          {"threads", threads},
          {"peak_gflops", peak},
          {"options", options_json(candidates.front().options)},
          {"seconds", Json::object()},
          {"paths", Json::object()}};
  json["options"].erase("path");
  std::vector<std::vector<std::string>> rows{
      {"path", "median", "q1 to q3", "min", "a row", "GFLOP/s", "of peak", "survive", "dots", "rows"}};
  double dense = 0, certified = std::numeric_limits<double>::infinity(), automatic = 0;
  for (const auto& candidate : candidates) {
    const Quantiles q = quantiles(candidate.seconds);
    const Stats& stats = candidate.result.stats;
    // Useful work is what dense scoring of the windows takes, whatever a path gets away with.
    const double gflops = 2 * stats.dense_dot_products * static_cast<double>(shape.head_dim) / q.median * 1e-9;
    const double dots = stats.dense_dot_products > 0 ? stats.dot_products / stats.dense_dot_products : 0;
    if (candidate.options.path == Path::dense) dense = q.median;
    if (candidate.options.path == Path::dosa) certified = std::min(certified, q.median);
    if (candidate.options.path == Path::automatic) automatic = q.median;
    rows.push_back({candidate.label, human_seconds(q.median),
                    text::format("{} to {}", human_seconds(q.q1), human_seconds(q.q3)), human_seconds(q.min),
                    human_seconds(q.median / static_cast<double>(std::max<std::int64_t>(shape.rows, 1))),
                    text::format("{:.1f}", gflops), peak > 0 ? percent(gflops, peak) : "",
                    percent(static_cast<double>(stats.survivors), static_cast<double>(stats.visible)),
                    text::format("{:.3f}", dots), rows_by_path(stats)});
    json["seconds"][candidate.label] = seconds_json(q);
    json["paths"][candidate.label] = {
        {"useful_gflops", gflops},
        {"share_of_peak", peak > 0 ? Json(gflops / peak) : Json(nullptr)},
        {"survivors", stats.survivors},
        {"survival",
         stats.visible > 0 ? static_cast<double>(stats.survivors) / static_cast<double>(stats.visible) : 0.0},
        {"exact_scores", stats.exact},
        {"dot_products_vs_dense", dots},
        {"rows_by_path", {{"dosa", stats.rows_dosa}, {"dense", stats.rows_dense}, {"model", stats.rows_model}}},
        {"workspace_bytes", candidate.workspace_bytes},
        {"why", candidate.why}};
  }
  std::string below = text::format("  peak: {:.1f} GFLOP/s, {} multiply-adds measured on one core, times {}\n", peak,
                                   isa == Isa::amx          ? "bf16 tile"
                                   : isa == Isa::avx512bf16 ? "bf16 pair"
                                                            : "F32",
                                   counted(threads, "thread"));
  if (on_gpu)
    below =
        "  every call copies the trace to the device and the result back; tools/device_bench times what lies there\n";
  if (few) {
    const Quantiles q = quantiles(reference_seconds);
    const double scaled = q.median / reference_share;
    rows.push_back({"reference", human_seconds(scaled), "", human_seconds(q.min / reference_share),
                    human_seconds(scaled / static_cast<double>(shape.rows)), "", "", "", "", ""});
    below += text::format(
        "  reference: measured on {} spread over the trace, one a thread, scaled by visible keys (x{:.1f})\n",
        counted(reference_rows, "row"), 1 / reference_share);
    Json seconds = seconds_json(q);
    for (const char* key : {"median", "min", "q1", "q3", "max"})
      seconds[key] = seconds[key].get<double>() / reference_share;
    seconds["scaled"] = true;
    seconds["measured_rows"] = reference_rows;
    seconds["measured_seconds"] = q.median;
    json["seconds"]["reference"] = seconds;
  }
  json["certified_speedup"] = nullptr;
  json["auto_speedup"] = nullptr;
  if (dense > 0 && std::isfinite(certified)) {
    result.certified_speedup = dense / certified;
    json["certified_speedup"] = result.certified_speedup;
    below += text::format("  certified speedup: {:.2f} (dense / dosa)\n", result.certified_speedup);
  }
  if (dense > 0 && automatic > 0) {
    json["auto_speedup"] = dense / automatic;
    below += text::format("  auto speedup: {:.2f} (dense / auto)\n", dense / automatic);
  }
  result.text = text::format("{}: {}, {}, {} of {}, K = {}, {}, {} on {}, {}\n{}{}", path, counted(shape.rows, "row"),
                             counted(shape.keys, "key"), counted(shape.heads, "head"), shape.head_dim,
                             human_count(static_cast<double>(options.top_k)), name(options.model), name(isa),
                             counted(threads, "thread"), counted(arguments.repeat, "repetition"), grid(rows), below);
  return result;
}

void run_bench(BenchArguments& arguments) {
  check_outputs("", "", arguments.json);
  if (arguments.repeat < 1)
    throw Error(ErrorKind::usage, text::format("--repeat: found {}, wanted at least 1", arguments.repeat));
  if (arguments.engine.options.backend == Backend::reference)
    throw Error(ErrorKind::usage,
                "--backend: found reference, wanted cpu or cuda (the reference is timed beside them)");
  const bool on_gpu = arguments.engine.options.backend == Backend::cuda;
  if (arguments.paths.empty())
    arguments.paths = on_gpu ? std::vector<std::string>{"dense"} : std::vector<std::string>{"dense", "dosa", "auto"};
  const Info machine = info();
  Json json{{"command", "bench"}, {"version", DOSA_VERSION}, {"processor", machine.processor}};
  std::string text = command_line() + "\n\n";
  std::vector<double> speedups;
  std::int64_t done = 0;
  const auto calls = static_cast<std::int64_t>(arguments.inputs.size()) * arguments.repeat *
                     static_cast<std::int64_t>(arguments.paths.size() + (arguments.reference_rows > 0 ? 1 : 0));
  Json inputs = Json::array();
  {
    Progress progress("bench, calls", calls);
    for (const auto& path : arguments.inputs) {
      InputResult result = bench_input(arguments, path, progress, done);
      text += result.text + "\n";
      if (result.certified_speedup > 0) speedups.push_back(result.certified_speedup);
      inputs.push_back(std::move(result.json));
    }
  }
  // One input: its figures at the top, where a script looks first.
  for (const char* key : {"isa", "threads"}) json[key] = inputs.front()[key];
  if (inputs.size() == 1) {
    json["seconds"] = inputs.front()["seconds"];
    json["auto_speedup"] = inputs.front()["auto_speedup"];
  }
  const Quantiles median = quantiles(speedups);
  json["certified_speedup"] = median.count > 0 ? Json(median.median) : Json(nullptr);
  if (median.count > 1) {
    text += text::format("certified speedup over {} inputs: {:.2f} median, {:.2f} to {:.2f}\n", median.count,
                         median.median, median.min, median.max);
  }
  json["inputs"] = std::move(inputs);
  arguments.json.finish(json, text);
}

}  // namespace

void add_bench(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("bench", "Time every path of one instruction set and the reference in one run");
  auto arguments = std::make_shared<BenchArguments>();
  command->add_option("IN", arguments->inputs, "Trace files")->required();
  command->add_option("--rows", arguments->rows, "Only these query rows (0:16, 3,7,20:24). Default: all")
      ->type_name("ROWS");
  arguments->engine.add_top_k(*command);
  arguments->engine.add_model(*command);
  arguments->engine.add_backend(*command);
  command->add_option("--path", arguments->paths, "Paths to time, with commas. Default: dense,dosa,auto")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check([](const std::string& word) {
        try {
          (void)parse_path(word);
        } catch (const Error& error) {
          return without_subject(error.what());
        }
        return std::string();
      })
      ->type_name("PATHS");
  command->add_option("--repeat", arguments->repeat, "Repetitions of each, interleaved")
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option(
          "--reference-rows", arguments->reference_rows,
          "Rows the reference is timed on (at least one a thread; 0: not at all); its time is scaled, and said so")
      ->capture_default_str()
      ->type_name("N");
  arguments->engine.add_machine(*command);
  arguments->engine.add_certificate(*command);
  add_json(*command, arguments->json);
  command->footer(
      "A repetition is a complete call: plan and run, no carry from an earlier call. Loading the file is left out. All "
      "run on the same threads, in turns; times are medians with quartiles. GFLOP/s count the multiply-adds of dense "
      "scoring, so a path that skips work can exceed the machine's peak.\n"
      "Example:\n"
      "  dosa bench trace.safetensors --top-k 2048 --threads 2 --json bench.json");
  command->callback([arguments] { run_bench(*arguments); });
}

}  // namespace dosa::app
