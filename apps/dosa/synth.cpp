// dosa synth: a named hard input as a trace file.

#include <memory>

#include "arguments.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "contract/text.hpp"
#include "dosa/trace.hpp"
#include "suggest.hpp"
#include "workloads/workloads.hpp"

namespace dosa::app {
namespace {

struct SynthArguments {
  std::string kind, out;
  bool list = false, full = false;
  std::int64_t rows = 0, keys = 0, heads = 0, head_dim = 0, top_k = 0;
  std::uint64_t seed = 1;
  CLI::App* command = nullptr;
  JsonOutput json;
};

std::string_view family_name(workloads::Family family) {
  switch (family) {
    case workloads::Family::scores:
      return "scores that break selectors";
    case workloads::Family::layout:
      return "shapes and windows";
    case workloads::Family::values:
      return "codes, scales and weights";
    case workloads::Family::certificate:
      return "against certificates";
  }
  return "?";
}

void list_kinds(const JsonOutput& output) {
  Json json{{"command", "synth"}, {"version", DOSA_VERSION}, {"kinds", Json::array()}};
  std::string text = "Named inputs that a trace file can hold (pages, strides and dtypes live in the tests)\n";
  std::size_t width = 0;
  for (const auto& entry : workloads::registry()) {
    if (entry.trace) width = std::max(width, entry.name.size());
  }
  std::string_view family;
  for (const auto& entry : workloads::registry()) {
    if (!entry.trace) continue;
    if (family != family_name(entry.family)) {
      family = family_name(entry.family);
      text += text::format("\n{}\n", family);
    }
    text += text::format("  {:<{}}  {}{}\n", entry.name, width, entry.description,
                         entry.thread.empty() ? "" : text::format(" ({})", entry.thread));
    json["kinds"].push_back(
        {{"name", entry.name}, {"family", family}, {"description", entry.description}, {"thread", entry.thread}});
  }
  output.finish(json, text);
}

const workloads::Entry& find_kind(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : workloads::registry()) {
    if (entry.name == kind && entry.trace) return entry;
    if (entry.name == kind) {
      throw Error(ErrorKind::usage, text::format("synth: found '{}', which a trace file cannot hold (pages, strides), "
                                                 "wanted one of dosa synth --list",
                                                 kind));
    }
    if (entry.trace) names.emplace_back(entry.name);
  }
  const std::string meant = did_you_mean(kind, names);
  throw Error(ErrorKind::usage, text::format("synth: found '{}', wanted a name that dosa synth --list shows{}", kind,
                                             meant.empty() ? "" : "; " + meant));
}

void run_synth(const SynthArguments& arguments) {
  if (arguments.list) return list_kinds(arguments.json);
  if (arguments.kind.empty()) throw Error(ErrorKind::usage, "synth: found no KIND, wanted one (dosa synth --list)");
  if (arguments.out.empty()) throw Error(ErrorKind::usage, "synth: found no --out, wanted the file to write");
  check_outputs("", arguments.out, arguments.json);
  const workloads::Entry& entry = find_kind(arguments.kind);
  workloads::Size size = arguments.full ? entry.full : entry.small;
  const auto take = [&](const char* flag, auto& into, std::int64_t value) {
    if (arguments.command->count(flag) != 0) into = static_cast<std::remove_reference_t<decltype(into)>>(value);
  };
  take("--rows", size.rows, arguments.rows);
  take("--keys", size.keys, arguments.keys);
  take("--heads", size.heads, std::clamp<std::int64_t>(arguments.heads, -1, 1 << 20));
  take("--head-dim", size.head_dim, std::clamp<std::int64_t>(arguments.head_dim, -1, 1 << 20));
  take("--top-k", size.top_k, arguments.top_k);
  size.seed = arguments.seed;

  const workloads::Workload workload = workloads::make(entry, size);
  std::map<std::string, std::string> metadata{{"kind", std::string(entry.name)},
                                              {"description", std::string(entry.description)},
                                              {"top_k", std::to_string(workload.top_k)},
                                              {"seed", std::to_string(size.seed)}};
  if (!entry.thread.empty()) metadata["thread"] = entry.thread;
  write_trace(arguments.out, workload.problem, metadata);

  const auto& q = workload.problem.q.shape;
  const std::int64_t keys = std::get<ContiguousKeys>(workload.problem.keys).codes.shape[0];
  Table table(command_line());
  table.row("input", std::string(entry.description));
  if (!entry.thread.empty()) table.row("broke", std::string(entry.thread));
  table.row("written", text::format("{}: {}, {}, {} of {}", arguments.out, counted(q[0], "row"), counted(keys, "key"),
                                    counted(q[1], "head"), q[2]));
  table.row("hard with", text::format("--top-k {}", workload.top_k));
  arguments.json.finish({{"command", "synth"},
                         {"version", DOSA_VERSION},
                         {"kind", entry.name},
                         {"seed", size.seed},
                         {"out", arguments.out},
                         {"rows", q[0]},
                         {"keys", keys},
                         {"heads", q[1]},
                         {"head_dim", q[2]},
                         {"top_k", workload.top_k}},
                        table.text());
}

}  // namespace

void add_synth(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("synth", "Write a named hard input as a trace file");
  auto arguments = std::make_shared<SynthArguments>();
  arguments->command = command;
  auto* kind = command->add_option("KIND", arguments->kind, "Name of the input (--list)");
  auto* list = command->add_flag("--list", arguments->list,
                                 "List the names, what they are, and the public report each comes from");
  auto* out = command->add_option("-o,--out", arguments->out, "Trace file to write")->type_name("FILE");
  list->excludes(kind)->excludes(out);
  command->add_flag("--full", arguments->full, "Sizes of the report the input comes from, instead of small ones");
  command->add_option("--rows", arguments->rows, "Query rows Q")->type_name("Q");
  command->add_option("--keys", arguments->keys, "Keys N")->type_name("N");
  command->add_option("--heads", arguments->heads, "Heads H, 1..128")->type_name("H");
  command->add_option("--head-dim", arguments->head_dim, "Head dimension D, a multiple of 32 in 32..256")
      ->type_name("D");
  command->add_option("-k,--top-k", arguments->top_k, "The K the input is made hard for")->type_name("K");
  command->add_option("--seed", arguments->seed, "Seed; the same one gives the same bytes on every machine")
      ->type_name("SEED")
      ->capture_default_str();
  add_json(*command, arguments->json);
  command->footer(
      "An input that needs more rows, heads or keys to exist at all gets them; the table says what was written. It is "
      "hard only while a row sees more keys than K.\n"
      "Examples:\n"
      "  dosa synth --list\n"
      "  dosa synth relu_plateau --rows 8 --keys 65536 --top-k 2048 --out plateau.safetensors");
  command->callback([arguments] { run_synth(*arguments); });
}

}  // namespace dosa::app
