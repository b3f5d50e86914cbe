#include <algorithm>

#include "contract/text.hpp"
#include "cpu/row_work.hpp"
#include "dosa/plan.hpp"
#include "fuzz/bodies.hpp"
#include "fuzz/reader.hpp"
#include "support/oracle.hpp"
#include "support/parity.hpp"
#include "support/rows.hpp"
#include "workloads/workloads.hpp"

namespace dosa::fuzz {
namespace {

workloads::Workload mutated(const workloads::Workload& made, Reader& reader) {
  workloads::Workload workload = made;
  auto* keys = std::get_if<ContiguousKeys>(&workload.problem.keys);
  const std::int64_t dim = workload.problem.q.shape[2], n = keys->codes.shape[0], rows = workload.problem.q.shape[0],
                     heads = workload.problem.q.shape[1];
  const auto own = [&](const auto* data, std::int64_t count) {
    using T = std::remove_cvref_t<decltype(*data)>;
    auto owner = std::make_shared<std::vector<T>>(data, data + count);
    workload.owners.push_back(owner);
    return owner->data();
  };
  std::uint8_t* q = own(workload.problem.q.data, rows * heads * dim);
  std::uint8_t* k = own(keys->codes.data, n * dim);
  float* scales = own(keys->scales.data, n);
  float* weights = own(workload.problem.weights.data, rows * heads);
  std::int32_t* ks = own(workload.problem.ks.data, rows);
  std::int32_t* ke = own(workload.problem.ke.data, rows);
  for (int change = reader.byte() % 24; change > 0; --change) {
    switch (reader.byte() % 8) {
      case 0:
        q[reader.below(rows * heads * dim)] = reader.byte();
        break;
      case 1:
        k[reader.below(n * dim)] = reader.byte();
        break;
      case 2:
        scales[reader.below(n)] = reader.real();
        break;
      case 3:
        weights[reader.below(rows * heads)] = reader.real();
        break;
      case 4:
        ks[reader.below(rows)] = static_cast<std::int32_t>(reader.below(n + 3)) - 1;
        break;
      case 5:
        ke[reader.below(rows)] = static_cast<std::int32_t>(reader.below(n + 3)) - 1;
        break;
      case 6: {  // one key becomes another
        const std::int64_t from = reader.below(n), to = reader.below(n);
        std::copy_n(k + from * dim, dim, k + to * dim);
        scales[to] = scales[from];
        break;
      }
      default: {  // one head becomes another, perhaps with the other sign
        const std::int64_t t = reader.below(rows), from = reader.below(heads), to = reader.below(heads);
        std::copy_n(q + (t * heads + from) * dim, dim, q + (t * heads + to) * dim);
        weights[t * heads + to] = reader.flag() ? -weights[t * heads + from] : weights[t * heads + from];
        break;
      }
    }
  }
  workload.problem.q.data = q;
  workload.problem.weights.data = weights;
  workload.problem.ks.data = ks;
  workload.problem.ke.data = ke;
  keys->codes.data = k;
  keys->scales.data = scales;
  return workload;
}

Options options_of(Reader& reader, std::int64_t heads, bool paged) {
  Options options = test::top(reader.below(80) + 1);
  const std::uint8_t bits = reader.byte();
  options.order = (bits & 1U) != 0 ? Order::score : Order::index;
  options.scores = (bits & 2U) != 0;
  options.model = (bits & 4U) != 0 ? ScoreModel::sm90 : ScoreModel::f64;
  options.threads = (bits & 8U) != 0 ? 2 + reader.byte() % 6 : 1;
  const int base = (bits >> 4U) % (paged ? 3 : 2);
  options.index_base = base == 0 ? IndexBase::absolute : base == 1 ? IndexBase::window : IndexBase::slot;
  if ((bits & 64U) != 0) {
    options.always_first = reader.byte() % 9;
    options.always_last = reader.byte() % 9;
  }
  if ((bits & 128U) != 0) {
    options.retained_heads = static_cast<int>(reader.byte() % (heads + 1));
    const std::uint32_t pieces = reader.word();
    Ablation& a = options.ablation;
    int bit = 0;
    for (bool* piece : {&a.projection, &a.joint_residual, &a.centred, &a.aggregate, &a.second_aggregate,
                        &a.absolute_form, &a.seeds, &a.best_first, &a.half_linear, &a.prediction, &a.narrow})
      *piece = ((pieces >> bit++) & 1U) != 0;
  }
  return options;
}

std::optional<std::string> run(std::span<const std::uint8_t> bytes) {
  static const std::vector<Isa> isas = test::runnable_isas();
  cpu::shortest_predicted = 1;
  Reader reader(bytes);
  const auto entries = workloads::registry();
  const workloads::Entry& entry =
      entries[static_cast<std::size_t>(reader.below(static_cast<std::int64_t>(entries.size())))];
  workloads::Size size;
  size.rows = reader.byte() % 6 + 1;
  size.heads = reader.byte() % 20 + 1;
  size.head_dim = 32 * (reader.byte() % 4 + 1);
  size.keys = reader.below(400) + 1;
  size.seed = reader.byte();
  const Options options = [&] {
    Options drawn = options_of(reader, size.heads, false);
    size.top_k = drawn.top_k;
    return drawn;
  }();
  if (entry.name == "cache_beyond_2gib" || entry.name == "page_stride_large") return std::nullopt;  // gigabytes a call
  workloads::Workload workload = workloads::make(entry, size);
  if (entry.trace) {
    workload = mutated(workload, reader);
    if (reader.flag())
      workload = workloads::paged(workload, 1 << (reader.byte() % 9), 4 * (reader.byte() % 3), true, size.seed);
  }
  const Problem& problem = workload.problem;
  Options asked = options;
  if (std::holds_alternative<PagedKeys>(problem.keys) && reader.flag()) asked.index_base = IndexBase::slot;
  asked.retained_heads = static_cast<int>(std::min<std::int64_t>(asked.retained_heads, problem.q.shape[1]));

  const test::Result wanted = test::expected(problem, asked);
  std::vector<std::byte> carry;
  const auto check = [&]() -> std::optional<std::string> {
    const Plan decided = plan(shape_of(problem), asked);
    std::vector<std::byte> workspace(decided.workspace_bytes(), std::byte{0xcd});
    carry.resize(decided.carry_bytes());
    const std::int64_t rows = wanted.rows, k = wanted.top_k;
    test::Result found{rows, k, std::vector<std::int32_t>(wanted.indices.size(), 77),
                       std::vector<std::int32_t>(wanted.lengths.size(), 77),
                       std::vector<float>(wanted.scores.size(), 77)};
    Selection selection;
    selection.indices = TensorView<std::int32_t, 2>::contiguous(found.indices.data(), {rows, k});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(found.lengths.data(), {rows});
    if (asked.scores) selection.scores = TensorView<float, 2>::contiguous(found.scores.data(), {rows, k});
    dosa::run(decided, problem, selection, workspace, carry);
    if (const auto bad = test::difference(wanted, found)) {
      return text::format("{} rows {} keys {} heads {} dim {} seed {}: {}: {}", entry.name, size.rows, size.keys,
                          size.heads, size.head_dim, size.seed, test::describe(asked), *bad);
    }
    return std::nullopt;
  };
  asked.backend = Backend::reference;
  if (auto bad = check()) return bad;
  asked.backend = Backend::cpu;
  for (const Isa isa : isas) {
    for (const Path path : {Path::dense, Path::dosa, Path::automatic}) {
      asked.isa = isa;
      asked.path = path;
      if (auto bad = check()) return bad;
    }
  }
  return std::nullopt;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto count = static_cast<int>(workloads::registry().size());
  for (int i = 0; i < count; ++i) {
    // entry, rows, heads, dim, keys, seed, K, option bits, pieces, mutations
    const auto low = static_cast<std::uint8_t>(i);
    all.push_back({0,
                   low,
                   static_cast<std::uint8_t>(3 + i % 3),
                   static_cast<std::uint8_t>(7 + i % 9),
                   static_cast<std::uint8_t>(i % 4),
                   1,
                   static_cast<std::uint8_t>(i * 7),
                   3,
                   0,
                   19,
                   static_cast<std::uint8_t>(i * 37),
                   5,
                   0xff,
                   3,
                   2,
                   0,
                   9,
                   0,
                   9,
                   1,
                   0,
                   5,
                   0x7f,
                   2,
                   0,
                   3,
                   0x80,
                   0,
                   0,
                   0});
  }
  return all;
}

}  // namespace

const Target& parity_target() {
  static constexpr Target target{"parity", run, seeds};
  return target;
}

}  // namespace dosa::fuzz
