#include "arguments.hpp"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <map>

#include "contract/text.hpp"
#include "dosa/types.hpp"
#include "trace/output_file.hpp"

namespace dosa::app {
namespace {

/// An option whose words the library parses: `parse` throws with the accepted words, which become a usage error.
template <class T, class Parse>
CLI::Option* add_word(CLI::App& command, const std::string& flag, T& target, Parse parse, const std::string& help,
                      const std::string& words) {
  return command
      .add_option_function<std::string>(
          flag,
          [&target, parse, flag](const std::string& word) {
            try {
              target = parse(word);
            } catch (const Error& error) {
              throw CLI::ValidationError(flag, without_subject(error.what()));
            }
          },
          help)
      ->type_name(words);
}

std::int64_t parse_bound(std::string_view text, const std::string& whole) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorKind::usage,
                text::format("--rows: found '{}', wanted rows such as 5, 0:16, 0:512:16 or 3,7,20:24", whole));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

}  // namespace

std::vector<std::int64_t> parse_rows(const std::string& text, std::int64_t available) {
  if (text.empty()) throw Error(ErrorKind::usage, "--rows: found nothing, wanted rows such as 5, 0:16 or 3,7,20:24");
  std::vector<std::int64_t> rows;
  for (const std::string_view part : split(text, ',')) {
    const auto bounds = split(part, ':');
    std::int64_t first = 0, last = available, step = 1;
    if (bounds.size() == 1) {
      first = parse_bound(part, text);
      last = first + 1;
    } else if (bounds.size() <= 3) {
      if (!bounds[0].empty()) first = parse_bound(bounds[0], text);
      if (!bounds[1].empty()) last = parse_bound(bounds[1], text);
      if (bounds.size() == 3) step = parse_bound(bounds[2], text);
    } else {
      parse_bound("", text);
    }
    if (first < 0 || last > available || first >= last || step < 1) {
      const std::string_view fault = step < 1        ? " and a step of at least 1"
                                     : first >= last ? " and a first row before the last"
                                                     : "";
      throw Error(ErrorKind::usage, text::format("--rows: found '{}', wanted rows in 0:{}{}", part, available, fault));
    }
    for (std::int64_t row = first; row < last; row += step) rows.push_back(row);
  }
  return rows;
}

void TraceArguments::add(CLI::App& command) {
  command.add_option("IN", path, "Trace file (safetensors: q, k, k_scale, weights, ks, ke; docs/traces.md)")
      ->required();
  command
      .add_option("--rows", rows,
                  "Only these query rows: 5, 0:16 (16 is not included), 0:512:16, or a list 3,7,20:24. Default: all")
      ->type_name("ROWS");
}

Trace TraceArguments::open() const {
  Trace trace = Trace::open(path);
  if (!rows) return trace;
  return trace.rows(parse_rows(*rows, trace.problem().q.shape[0]));
}

void EngineArguments::add_top_k(CLI::App& command, bool required) {
  auto* option = command.add_option("-k,--top-k", options.top_k,
                                    "K: how many keys a row selects, at least 1 (a row that sees fewer is short)");
  option->type_name("K");
  if (required) option->required();
}

void EngineArguments::add_model(CLI::App& command) {
  add_word(
      command, "--model", options.model, parse_score_model,
      "Which bits a score has. f64 (default): exact dot products, a binary64 sum, one rounding. sm90: the bits that "
      "DeepGEMM's kernel writes on Hopper (default where --backend cuda asks for it)",
      "f64|sm90");
}

void EngineArguments::add_backend(CLI::App& command) {
  // Defined after --model, so read after it: a backend that knows one model only is not asked for another by default.
  const auto parse = [this, &command](std::string_view word) {
    const Backend backend = parse_backend(word);
    const CLI::Option* const model = command.get_option_no_throw("--model");
    if (backend == Backend::cuda && model != nullptr && model->count() == 0) options.model = ScoreModel::sm90;
    return backend;
  };
  add_word(
      command, "--backend", options.backend, parse,
      "Who computes: auto (default), reference (scores and sorts everything), cpu, cuda (a Hopper GPU; model sm90). An "
      "absent one is an error, never replaced",
      "auto|reference|cpu|cuda");
}

void EngineArguments::add_path(CLI::App& command) {
  add_word(command, "--path", options.path, parse_path,
           "How rows are computed: auto (default: measured for each row), dense (all heads of all keys), dosa (a "
           "certificate rejects keys first; a row with too many survivors is computed dense, and the table says so)",
           "auto|dense|dosa");
}

void EngineArguments::add_result(CLI::App& command) {
  add_word(command, "--order", options.order, parse_order,
           "Order of a row's keys: index (default, ascending) or score (best first)", "index|score");
  add_word(command, "--index-base", options.index_base, parse_index_base,
           "What an index counts from: absolute (default) or window (the row's first visible key)", "absolute|window");
  command
      .add_option("--always-first", options.always_first, "The first N visible keys are always selected (score +inf)")
      ->type_name("N");
  command.add_option("--always-last", options.always_last, "The last M visible keys are always selected (score +inf)")
      ->type_name("M");
}

void EngineArguments::add_machine(CLI::App& command) {
  add_word(command, "--isa", options.isa, parse_isa,
           "Instruction set of the cpu backend. Default: DOSA_ISA, else the best there is (dosa info)",
           "auto|portable|avx2|avx512|avx512bf16|amx");
  command.add_option("--threads", options.threads, "Threads. Default, and 0: as many as the process may use")
      ->type_name("T");
}

void EngineArguments::add_certificate(CLI::App& command) {
  command
      .add_option("--r", options.retained_heads,
                  "Heads that the certificate computes in full. Default: chosen for each row by measured survival")
      ->type_name("R");
  static const std::map<std::string, bool Ablation::*> pieces{{"projection", &Ablation::projection},
                                                              {"joint-residual", &Ablation::joint_residual},
                                                              {"centred", &Ablation::centred},
                                                              {"aggregate", &Ablation::aggregate},
                                                              {"second-aggregate", &Ablation::second_aggregate},
                                                              {"half-linear", &Ablation::half_linear},
                                                              {"narrow", &Ablation::narrow},
                                                              {"seeds", &Ablation::seeds},
                                                              {"best-first", &Ablation::best_first},
                                                              {"prediction", &Ablation::prediction}};
  auto& ablation = options.ablation;
  command
      .add_option_function<std::vector<std::string>>(
          "--without",
          [&ablation](const std::vector<std::string>& words) {
            for (const auto& word : words) {
              const auto piece = pieces.find(word);
              if (piece == pieces.end()) {
                std::string accepted;
                for (const auto& [known, member] : pieces) accepted += (accepted.empty() ? "" : ", ") + known;
                throw CLI::ValidationError("--without", text::format("found '{}', wanted some of {}", word, accepted));
              }
              ablation.*piece->second = false;
            }
          },
          "Switch pieces of the certificate off, to see what each is worth (the result stays the same): projection, "
          "joint-residual, centred, aggregate, second-aggregate, seeds, best-first, half-linear, narrow, prediction")
      ->delimiter(',')
      ->allow_extra_args(false)  // or it would swallow the input behind it
      ->type_name("PIECES");
  command.add_flag("--absolute-form", ablation.absolute_form,
                   "Use the certificate's absolute-value form instead of the relu form");
}

std::string without_subject(std::string_view message) {
  const std::size_t found = message.find(": found ");
  return std::string(found == std::string_view::npos ? message : message.substr(found + 2));
}

void add_json(CLI::App& command, JsonOutput& output) {
  command.add_option("--json", output.path, "Write the same as JSON (- for standard output, instead of the table)")
      ->type_name("FILE");
}

void check_outputs(const std::string& in, const std::string& out, const JsonOutput& json) {
  if (out == "-")
    throw Error(ErrorKind::usage,
                "found - as output, wanted the name of a file (only --json can go to standard output)");
  std::error_code ignored;
  for (const std::string& path : {out, json.on_stdout() ? std::string() : json.path}) {
    if (path.empty()) continue;
    if (!in.empty() && (path == in || std::filesystem::equivalent(path, in, ignored))) {
      throw Error(ErrorKind::usage, text::format("found {} as input and output, wanted another output", path));
    }
    OutputFile::check_writable(path);
  }
  if (!out.empty() && out == json.path) {
    throw Error(ErrorKind::usage, text::format("found {} twice, wanted different files for the two outputs", out));
  }
}

void check_memory(double bytes, std::string_view what) {
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (bytes > memory) {
    throw Error(ErrorKind::usage, text::format("{} would take {}, this machine has {}; --rows takes a part of the rows",
                                               what, human_bytes(bytes), human_bytes(memory)));
  }
}

}  // namespace dosa::app
