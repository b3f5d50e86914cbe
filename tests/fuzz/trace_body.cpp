#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "contract/text.hpp"
#include "dosa/plan.hpp"
#include "dosa/trace.hpp"
#include "fuzz/bodies.hpp"
#include "support/oracle.hpp"
#include "workloads/workloads.hpp"

namespace dosa::fuzz {
namespace {

/// Reads every element: a view that leaves its tensor is the sanitizer's catch.
template <class T, std::size_t Rank>
std::uint64_t digest(const TensorView<const T, Rank>& view) {
  std::uint64_t sum = 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : view.shape) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) {
    std::remove_const_t<T> value;
    std::memcpy(&value, view.data + i, sizeof(T));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    sum = sum * 31 + bits;
  }
  return sum;
}

std::uint64_t digest(const Problem& problem) {
  const auto& keys = std::get<ContiguousKeys>(problem.keys);
  return digest(problem.q) ^ digest(problem.weights) ^ digest(keys.codes) ^ digest(keys.scales) ^ digest(problem.ks) ^
         digest(problem.ke);
}

std::optional<std::string> run(std::span<const std::uint8_t> bytes) {
  try {
    const Trace trace = Trace::from_bytes(std::as_bytes(bytes), "fuzz");
    const Problem& problem = trace.problem();
    const std::uint64_t once = digest(problem);
    // A trace that was accepted is a problem that plan() accepts.
    const Plan decided = plan(shape_of(problem), test::top(3));
    const std::int64_t rows = decided.shape().rows;
    if (rows > 0) {
      const std::vector<std::int64_t> both{rows - 1, 0};
      const Trace part = trace.rows(both);
      static_cast<void>(digest(part.problem()));
      if (*part.problem().ks.at(0) != *problem.ks.at(rows - 1)) return "rows(): another row than the one named";
      if (rows * decided.shape().keys * decided.shape().heads <= 20000) {
        const OwnedSelection owned = select(problem, test::top(3, Backend::cpu));
        const test::Result found{owned.rows, owned.top_k, owned.indices, owned.lengths, {}};
        if (auto bad = test::difference(test::expected(problem, test::top(3)), found)) return bad;
      }
    }
    if (digest(problem) != once) return "the trace changed while it was read";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) return text::format("an error of the wrong kind: {}", error.what());
    if (std::strlen(error.what()) == 0) return "an error without words";
  }
  return std::nullopt;
}

Bytes file_of(const Problem& problem, bool spaces) {
  const auto& keys = std::get<ContiguousKeys>(problem.keys);
  nlohmann::ordered_json header;
  Bytes data;
  const auto add = [&](const char* name, const char* dtype, const auto& view) {
    std::size_t count = sizeof(*view.data);
    for (const std::int64_t extent : view.shape) count *= static_cast<std::size_t>(extent);
    const auto* first = reinterpret_cast<const std::uint8_t*>(view.data);
    header[name] = {{"dtype", dtype}, {"shape", view.shape}, {"data_offsets", {data.size(), data.size() + count}}};
    data.insert(data.end(), first, first + count);
  };
  header["__metadata__"] = {{"model", "fuzz"}};
  add("ke", "I32", problem.ke);
  add("ks", "I32", problem.ks);
  add("k_scale", "F32", keys.scales);
  add("weights", "F32", problem.weights);
  add("k", "F8_E4M3", keys.codes);
  add("q", "F8_E4M3", problem.q);
  std::string text = header.dump();
  while (spaces && text.size() % 8 != 0) text += ' ';
  Bytes file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::uint8_t>(std::uint64_t{text.size()} >> (8 * i)));
  file.insert(file.end(), text.begin(), text.end());
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> files;
  for (const workloads::Entry& entry : workloads::registry()) {
    if (!entry.trace || files.size() >= 40) continue;
    const workloads::Workload workload = workloads::make(entry, {1, 3, 1, 32, 1, 1});
    files.push_back(file_of(workload.problem, true));
  }
  return files;
}

}  // namespace

const Target& trace_target() {
  static constexpr Target target{"trace", run, seeds};
  return target;
}

}  // namespace dosa::fuzz
