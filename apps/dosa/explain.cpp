// dosa explain: what happened to the keys of a row, or of all rows.

#include <cmath>
#include <memory>
#include <numeric>

#include "arguments.hpp"
#include "commands.hpp"
#include "contract/text.hpp"
#include "device_explanation.hpp"
#include "distribution.hpp"
#include "explanation.hpp"
#include "trace/output_file.hpp"

namespace dosa::app {
namespace {

struct ExplainArguments {
  TraceArguments trace;
  EngineArguments engine;
  std::optional<std::int64_t> row;
  std::string svg;
  JsonOutput json;
};

std::string shares(const std::vector<double>& winners, const std::vector<double>& others) {
  const Quantiles a = quantiles(winners), b = quantiles(others);
  const auto one = [](const Quantiles& q) {
    return q.count == 0 ? std::string("-") : text::format("{:.0f} %", 100 * q.median);
  };
  return text::format("{} of the winners, {} of the other keys", one(a), one(b));
}

void describe_rows(const Explanation& e, Table& table, Json& json) {
  const Quantiles positive = quantiles(e.positive_heads), negative = quantiles(e.negative_heads);
  const Quantiles std_dev = quantiles(e.score_std);
  const double heads = static_cast<double>(e.shape.heads);
  if (e.single()) {
    const RowReport& report = e.call.selection.stats.row_reports[static_cast<std::size_t>(e.rows[0])];
    table.row("row",
              text::format("{}: {} visible keys, {} ({})", e.rows[0], human_count(static_cast<double>(report.visible)),
                           name(report.path), name(report.reason)));
    if (report.path == Path::dosa) {
      table.row("certificate", text::format("{} of {} heads kept, {} aggregate row{}", report.retained_heads,
                                            e.shape.heads, report.aggregates, report.aggregates == 1 ? "" : "s"));
    }
    table.row("thresholds",
              text::format("K-th score {:.6g}, keys rejected below {:.6g}", e.kth_scores[0], e.thresholds[0]));
  } else {
    table.row("looked at",
              text::format("{}, {} of them certified", counted(std::ssize(e.rows), "row"), e.bounded_rows));
  }
  std::vector<double> zero_heads;
  for (std::size_t i = 0; i < e.positive_heads.size(); ++i) {
    zero_heads.push_back(heads - e.positive_heads[i] - e.negative_heads[i]);
  }
  table.row("signs", text::format("{:.3g} positive heads, {:.3g} negative, {:.3g} of weight zero{}", positive.median,
                                  negative.median, quantiles(zero_heads).median,
                                  e.single() ? "" : " (each the median over rows)"));
  table.row("activation",
            text::format("positive heads fire on {}", shares(e.positive_active_winners, e.positive_active_others)));
  table.row("", text::format("negative heads fire on {}", shares(e.negative_active_winners, e.negative_active_others)));
  describe_distribution("tau gap",
                        text::format("K-th score minus the threshold that rejected, {} of the call",
                                     counted(std::ssize(e.gaps), "dosa row")),
                        e.gaps, std_dev.median, table, json["tau_gap"]);
  describe_distribution("slack",
                        text::format("upper bound minus score, {}{}", counted(std::ssize(e.slacks), "key"),
                                     e.stride > 1 ? text::format(" (one in {})", e.stride) : ""),
                        e.slacks, std_dev.median, table, json["slack"]);
  if (!e.gaps.empty() && !e.slacks.empty()) {
    table.row("", "a key survives where its score is at most gap + slack below the K-th score");
  }
  table.row("survivors", e.bounded_rows == 0
                             ? std::string("-")
                             : text::format("{} of {} keys scored ({}), {} of them selected",
                                            human_count(static_cast<double>(e.survivors)),
                                            human_count(static_cast<double>(e.competing)),
                                            percent(static_cast<double>(e.survivors), static_cast<double>(e.competing)),
                                            human_count(static_cast<double>(e.winners))));
  if (e.unbounded > 0) {
    table.row("", text::format("{} keys have no finite bound (their scale or codes): scored one by one",
                               human_count(static_cast<double>(e.unbounded))));
  }
  const double total = e.retained_dots + e.aggregate_dots + e.refinement_dots;
  if (e.dense_dots > 0) {
    table.row("dot products",
              text::format("{:.3f} of dense: heads {:.3f}, aggregates {:.3f}, survivors and sample {:.3f}",
                           total / e.dense_dots, e.retained_dots / e.dense_dots, e.aggregate_dots / e.dense_dots,
                           e.refinement_dots / e.dense_dots));
  }
  json["rows_looked_at"] = e.rows.size();
  json["rows_bounded"] = e.bounded_rows;
  json["positive_heads"] = to_json(positive);
  json["negative_heads"] = to_json(negative);
  json["activation"] = {{"positive_heads",
                         {{"winners", to_json(quantiles(e.positive_active_winners))},
                          {"others", to_json(quantiles(e.positive_active_others))}}},
                        {"negative_heads",
                         {{"winners", to_json(quantiles(e.negative_active_winners))},
                          {"others", to_json(quantiles(e.negative_active_others))}}}};
  json["score_std"] = to_json(std_dev);
  json["kth_score"] = to_json(quantiles(e.kth_scores));
  json["threshold"] = to_json(quantiles(e.thresholds));
  json["slack_stride"] = e.stride;
  json["keys"] = e.competing;
  json["survivors"] = e.survivors;
  json["selected"] = e.winners;
  json["unbounded"] = e.unbounded;
  json["dot_products_vs_dense"] = {{"total", e.dense_dots > 0 ? total / e.dense_dots : 0},
                                   {"heads", e.dense_dots > 0 ? e.retained_dots / e.dense_dots : 0},
                                   {"aggregates", e.dense_dots > 0 ? e.aggregate_dots / e.dense_dots : 0},
                                   {"survivors_and_sample", e.dense_dots > 0 ? e.refinement_dots / e.dense_dots : 0}};
}

void run_explain(const ExplainArguments& arguments) {
  check_outputs(arguments.trace.path, arguments.svg, arguments.json);
  const Trace trace = arguments.trace.open();
  const std::int64_t available = trace.problem().q.shape[0];
  if (arguments.row && (*arguments.row < 0 || *arguments.row >= available)) {
    throw Error(ErrorKind::usage, text::format("--row: found {}, wanted 0 <= T < {}{}", *arguments.row, available,
                                               arguments.trace.rows ? " (counted within --rows)" : ""));
  }
  Options options = arguments.engine.options;
  if (options.backend == Backend::reference)
    throw Error(ErrorKind::usage,
                "--backend: found reference, wanted cpu or cuda (the reference only scores and sorts)");
  const bool on_gpu = options.backend == Backend::cuda;
  if (!on_gpu) options.backend = Backend::cpu;
  options.scores = true;  // the K-th score of every row is part of its report only then
  std::vector<std::int64_t> rows(arguments.row ? 1 : static_cast<std::size_t>(available), arguments.row.value_or(0));
  if (!arguments.row) std::iota(rows.begin(), rows.end(), 0);

  Table table(command_line());
  Json json{{"command", "explain"}, {"version", DOSA_VERSION}};
  std::string picture;
  if (on_gpu) {
    const Call call = call_engine(trace.problem(), options, "explain");
    const DeviceExplanation explanation = explain_device(trace.name(), trace.problem(), call, rows);
    describe_input(trace, table, json);
    describe_engine(call.options, call.why, table, json);
    describe_device(explanation, table, json);
    if (!arguments.svg.empty()) picture = device_explanation_svg(explanation);
  } else {
    const Explanation explanation = explain_rows(trace.name(), trace.problem(), options, rows, "explain");
    describe_input(trace, table, json);
    describe_engine(explanation.call.options, explanation.call.why, table, json);
    table.row("rows", rows_by_path(explanation.call.selection.stats));
    describe_rows(explanation, table, json);
    if (!arguments.svg.empty()) picture = explanation_svg(explanation);
  }
  if (!arguments.svg.empty()) {
    OutputFile file(arguments.svg);
    file.write(picture);
    file.commit();
    table.row("drawn", arguments.svg);
    json["svg"] = arguments.svg;
  }
  arguments.json.finish(json, table.text());
}

}  // namespace

void add_explain(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("explain", "Show what happened to the keys of a row or of all rows");
  auto arguments = std::make_shared<ExplainArguments>();
  arguments->trace.add(*command);
  arguments->engine.add_top_k(*command);
  command->add_option("--row", arguments->row, "Only this row (all rows are selected, so that it gets its seeds)")
      ->type_name("T");
  command
      ->add_option("--svg", arguments->svg,
                   "Draw it: scores against bounds, tau gap, slack, where the winners lie, work")
      ->type_name("FILE");
  arguments->engine.add_model(*command);
  arguments->engine.add_backend(*command);
  command->get_option("--backend")
      ->description(
          "Whose work is looked at: cpu (default, auto means it) or cuda (a Hopper GPU, model sm90: what the "
          "device counted; it has no certificate)")
      ->type_name("auto|cpu|cuda");
  arguments->engine.add_path(*command);
  arguments->engine.add_machine(*command);
  arguments->engine.add_certificate(*command);
  add_json(*command, arguments->json);
  command->footer(
      "For every key the certificate's upper bound is compared with its score. tau gap: how far the threshold that "
      "rejected "
      "lies below the K-th score; slack: how far a bound lies above its score. The two are different costs: better "
      "seeds lower the first, more heads the second.\n"
      "Examples:\n"
      "  dosa explain data/sample_en_l03_h32.safetensors --top-k 256 --row 20 --svg row20.svg\n"
      "  dosa explain trace.safetensors --top-k 2048 --without aggregate,second-aggregate");
  command->callback([arguments] { run_explain(*arguments); });
}

}  // namespace dosa::app
