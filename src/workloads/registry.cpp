#include "contract/text.hpp"
#include "dosa/types.hpp"
#include "workloads/builder.hpp"

namespace dosa::workloads {

std::span<const Entry> registry() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    append_score_entries(all);
    append_layout_entries(all);
    append_value_entries(all);
    append_certificate_entries(all);
    return all;
  }();
  return entries;
}

const Entry& find(std::string_view name) {
  std::string names;
  for (const Entry& entry : registry()) {
    if (entry.name == name) return entry;
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  throw Error(ErrorKind::usage, text::format("workload: found '{}', wanted one of {}", name, names));
}

Workload make(const Entry& entry, const Size& size) {
  const auto check = [&](bool good, std::string_view what, std::int64_t found, std::string_view wanted) {
    if (!good)
      throw Error(ErrorKind::usage,
                  text::format("workload {}: {}: found {}, wanted {}", entry.name, what, found, wanted));
  };
  check(size.rows >= 1 && size.rows <= (std::int64_t{1} << 24), "rows", size.rows, "1 to 2^24");
  check(size.keys >= 1 && size.keys < (std::int64_t{1} << 31) - 1, "keys", size.keys, "1 to 2^31 - 2");
  check(size.heads >= 1 && size.heads <= 128, "heads", size.heads, "1 to 128");
  check(size.head_dim >= 32 && size.head_dim <= 256 && size.head_dim % 32 == 0, "head_dim", size.head_dim,
        "a multiple of 32 in 32 to 256");
  check(size.top_k >= 1, "top_k", size.top_k, "at least 1");
  Workload workload = entry.make(size);
  workload.name = entry.name;
  return workload;
}

}  // namespace dosa::workloads
