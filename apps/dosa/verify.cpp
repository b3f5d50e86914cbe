// dosa verify: a backend, or a result on disk, against the reference, byte for byte.

#include <bit>
#include <cstring>
#include <memory>
#include <optional>

#include "arguments.hpp"
#include "call.hpp"
#include "commands.hpp"
#include "contract/text.hpp"
#include "explanation.hpp"
#include "report.hpp"
#include "result_file.hpp"

namespace dosa::app {
namespace {

struct VerifyArguments {
  TraceArguments trace;
  EngineArguments engine;
  std::string result;
  JsonOutput json;
};

struct Difference {
  std::int64_t row = 0, slot = -1;  ///< slot -1: the length differs
  std::int32_t found_index = 0, wanted_index = 0;
  float found_score = 0, wanted_score = 0;
};

struct Comparison {
  std::int64_t rows_differing = 0;
  std::optional<Difference> first;
};

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

Comparison compare(const OwnedSelection& found, const OwnedSelection& wanted, bool scores) {
  Comparison result;
  for (std::int64_t row = 0; row < wanted.rows; ++row) {
    const auto length = static_cast<std::size_t>(row);
    Difference difference{.row = row};
    bool differs = false;
    for (std::int64_t slot = 0; slot < wanted.top_k && !differs; ++slot) {
      const auto at = static_cast<std::size_t>(row * wanted.top_k + slot);
      differs = found.indices[at] != wanted.indices[at] || (scores && !same_bits(found.scores[at], wanted.scores[at]));
      if (!differs) continue;
      difference.slot = slot;
      difference.found_index = found.indices[at];
      difference.wanted_index = wanted.indices[at];
      if (scores) {
        difference.found_score = found.scores[at];
        difference.wanted_score = wanted.scores[at];
      }
    }
    if (!differs && found.lengths[length] != wanted.lengths[length]) {
      differs = true;
      difference.found_index = found.lengths[length];
      difference.wanted_index = wanted.lengths[length];
    }
    if (!differs) continue;
    if (!result.first) result.first = difference;
    ++result.rows_differing;
  }
  return result;
}

std::string describe(const Difference& difference, bool scores) {
  if (difference.slot < 0) {
    return text::format("row {}: found length {}, wanted {}", difference.row, difference.found_index,
                        difference.wanted_index);
  }
  const auto one = [&](std::int32_t index, float score) {
    return scores ? text::format("index {} with score {} (0x{:08x})", index, score, std::bit_cast<std::uint32_t>(score))
                  : text::format("index {}", index);
  };
  return text::format("row {}, slot {}: found {}, wanted {}", difference.row, difference.slot,
                      one(difference.found_index, difference.found_score),
                      one(difference.wanted_index, difference.wanted_score));
}

/// A result of other rows would be compared row by row with the wrong ones.
void check_rows(const VerifyArguments& arguments) {
  const std::string made_with = rows_of_result(arguments.result), given = arguments.trace.rows.value_or("");
  if (made_with == given) return;
  const std::int64_t available = Trace::open(arguments.trace.path).problem().q.shape[0];
  const auto rows = [&](const std::string& text) { return parse_rows(text.empty() ? "0:" : text, available); };
  if (rows(made_with) == rows(given)) return;
  const auto words = [](const std::string& text) { return text.empty() ? "none" : "--rows " + text; };
  throw Error(ErrorKind::usage,
              text::format("--rows: found {}, wanted {}, which the result is of", words(given), words(made_with)));
}

ExitCode run_verify(const VerifyArguments& arguments) {
  check_outputs(arguments.trace.path, "", arguments.json);
  const Trace trace = arguments.trace.open();
  Options options = arguments.engine.options;
  Table table(command_line());
  Json json{{"command", "verify"}, {"version", DOSA_VERSION}};
  OwnedSelection found;
  int threads = 0;
  if (arguments.result.empty()) {
    if (options.top_k == 0) throw Error(ErrorKind::usage, "verify: found no --top-k, wanted one (or --result FILE)");
    options.scores = true;
    Explanation explanation =
        explain_rows(trace.name(), trace.problem(), options, spread_rows(trace.problem().q.shape[0], 4), "verify");
    Call& call = explanation.call;
    threads = call.options.threads;
    describe_input(trace, table, json);
    describe_engine(call.options, call.why, table, json);
    describe_stats(call.selection.stats, call.workspace_bytes, &explanation, table, json);
    found = std::move(call.selection);
  } else {
    check_rows(arguments);
    found = read_result(arguments.result, trace.problem().q.shape[0], options);
    threads = info().threads;
    describe_input(trace, table, json);
    table.row("result",
              text::format("top-k {}, model {}, order {}, index base {}{}", options.top_k, name(options.model),
                           name(options.order), name(options.index_base), options.scores ? ", scores" : ""));
    json["options"] = options_json(options);
    json["result"] = arguments.result;
  }
  const Call reference = call_reference(trace.problem(), options, threads, "reference");
  const Comparison comparison = compare(found, reference.selection, options.scores);

  table.row("reference", text::format("{} on {}: every key scored and sorted",
                                      human_seconds(reference.selection.stats.seconds), counted(threads, "thread")));
  json["reference_seconds"] = reference.selection.stats.seconds;
  json["rows_differing"] = comparison.rows_differing;
  json["equal"] = !comparison.first.has_value();
  if (comparison.first) {
    const Difference& first = *comparison.first;
    table.row("verdict", text::format("DIFFERENT in {} of {}", comparison.rows_differing, counted(found.rows, "row")));
    table.row("first", describe(first, options.scores));
    json["first_difference"] = {{"row", first.row},
                                {"slot", first.slot < 0 ? Json(nullptr) : Json(first.slot)},
                                {"found", first.found_index},
                                {"wanted", first.wanted_index}};
    if (options.scores && first.slot >= 0) {
      json["first_difference"]["found_score_bits"] = std::bit_cast<std::uint32_t>(first.found_score);
      json["first_difference"]["wanted_score_bits"] = std::bit_cast<std::uint32_t>(first.wanted_score);
    }
  } else {
    table.row("verdict", text::format("EQUAL: {}, indices{} and lengths, byte for byte", counted(found.rows, "row"),
                                      options.scores ? ", scores" : ""));
  }
  arguments.json.finish(json, table.text());
  return comparison.first ? kMismatch : kSuccess;
}

}  // namespace

void add_verify(CLI::App& app, ExitCode& status) {
  auto* command =
      app.add_subcommand("verify", "Compare a backend, or a result file, with the reference, byte for byte");
  auto arguments = std::make_shared<VerifyArguments>();
  arguments->trace.add(*command);
  arguments->engine.add_top_k(*command, false);
  auto* result =
      command->add_option("--result", arguments->result,
                          "Check this result of dosa select instead of running a backend; K, model, order, index "
                          "base and forced keys are read from it, not given");
  result->type_name("FILE");
  arguments->engine.add_model(*command);
  arguments->engine.add_backend(*command);
  arguments->engine.add_path(*command);
  arguments->engine.add_result(*command);
  arguments->engine.add_machine(*command);
  arguments->engine.add_certificate(*command);
  for (const char* other :
       {"--top-k", "--model", "--backend", "--path", "--order", "--index-base", "--always-first", "--always-last"}) {
    result->excludes(command->get_option(other));
  }
  add_json(*command, arguments->json);
  command->footer(
      "The reference scores every visible key under the model and sorts: slow, short and obvious. Scores are compared "
      "too. Exit code 4 where anything differs; the first difference is printed.\n"
      "Examples:\n"
      "  dosa verify trace.safetensors --top-k 2048 --path dosa --isa avx2 --rows 0:64\n"
      "  dosa verify trace.safetensors --result selected.safetensors");
  command->callback([arguments, &status] { status = run_verify(*arguments); });
}

}  // namespace dosa::app
