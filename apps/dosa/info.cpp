// dosa info: what this build and this machine offer, and what would be chosen.

#include <memory>

#include "arguments.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "contract/text.hpp"
#include "dosa/plan.hpp"

namespace dosa::app {
namespace {

void run_info(const JsonOutput& output) {
  const Info found = info();
  Json json{{"command", "info"},        {"version", found.version},  {"processor", found.processor},
            {"threads", found.threads}, {"isa", name(found.chosen)}, {"isa_why", found.chosen_why}};
  Table table("dosa " + found.version);
  table.row("processor", found.processor);
  table.row("threads", text::format("{} (what the process may use; --threads)", found.threads));
  table.row("chosen", found.chosen_why);
  std::string label = "backends";
  for (const auto& backend : found.backends) {
    table.row(label,
              text::format("{:<10} {:<4} {}", name(backend.backend), backend.available ? "yes" : "no", backend.why));
    json["backends"].push_back(
        {{"name", name(backend.backend)}, {"available", backend.available}, {"why", backend.why}});
    label.clear();
  }
  label = "instruction sets";
  for (const auto& isa : found.isas) {
    table.row(label, text::format("{:<10} {:<4} {}", name(isa.isa), isa.available ? "yes" : "no", isa.why));
    json["isas"].push_back({{"name", name(isa.isa)}, {"available", isa.available}, {"why", isa.why}});
    label.clear();
  }
  output.finish(json, table.text());
}

}  // namespace

void add_info(CLI::App& app, ExitCode&) {
  auto* command = app.add_subcommand("info", "List backends, instruction sets, and what would be chosen and why");
  auto output = std::make_shared<JsonOutput>();
  add_json(*command, *output);
  command->footer("DOSA_ISA=avx2 dosa info shows what an override does. Nothing is ever replaced silently.");
  command->callback([output] { run_info(*output); });
}

}  // namespace dosa::app
