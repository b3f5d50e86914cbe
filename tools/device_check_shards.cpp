// Key shards: each on the device, equal to the CPU's shard; merged, equal to the whole.
#include "device_pairs.hpp"

namespace dosa::tools {
namespace {

using workloads::Random;

/// Keys first .. last - 1 of the problem; paged keys are cut at pages.
Problem part_of(const Problem& whole, std::int64_t first, std::int64_t last) {
  Problem part = whole;
  if (auto* paged = std::get_if<PagedKeys>(&part.keys)) {
    auto& table = paged->block_table;
    table.data += first / paged->page_size * table.strides[1];
    table.shape[1] = (last - first) / paged->page_size;
    return part;
  }
  auto& keys = std::get<ContiguousKeys>(part.keys);
  keys.codes.data += first * keys.codes.strides[0];
  keys.scales.data += first * keys.scales.strides[0];
  keys.codes.shape[0] = keys.scales.shape[0] = last - first;
  return part;
}

void check_split(Tally& tally, Random& random, const Problem& problem, const Options& options,
                 const std::string& what) {
  const Shape shape = shape_of(problem);
  const std::int64_t grain = shape.paged ? shape.page_size : 1, pieces = shape.keys / grain;
  const std::int64_t count = 2 + random.below(4);
  std::vector<std::int64_t> cuts{0, pieces};
  for (std::int64_t i = 1; i < count; ++i) cuts.push_back(random.below(pieces + 1));  // some are empty now and then
  std::sort(cuts.begin(), cuts.end());
  std::vector<OwnedSelection> results;
  std::vector<Partial> parts;
  results.reserve(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int64_t first = cuts[i] * grain, last = cuts[i + 1] * grain;
    const Problem part = part_of(problem, first, last);
    Options asked = options;
    asked.shard = Shard{first, shape.keys};
    asked.index_base = IndexBase::absolute;
    asked.order = random.chance(0.5) ? Order::index : Order::score;
    asked.scores = true;
    const std::string name = text::format("{} keys {}..{} of {}", what, first, last, shape.keys);
    const OwnedSelection wanted = on(part, asked, Backend::cpu);
    {
      const Tuned tuned(random.chance(0.5) ? cuda::Tuning{} : cuda::Tuning{.chunks = random.chance(0.5) ? 1 : 3});
      results.push_back(on(part, asked, Backend::cuda));
      tally.expect(name, difference(wanted, results.back()));
      if (last > first) {
        HostMask mask(shape.rows, last - first);
        std::fill(mask.words.begin(), mask.words.end(), ~0U);
        ResidentPairs device(part, asked, mask);
        tally.expect(name + " as pairs", difference(wanted, device.run()));
      }
    }
    const OwnedSelection& result = results.back();
    parts.push_back({TensorView<const std::int32_t, 2>::contiguous(result.indices.data(), {shape.rows, options.top_k}),
                     TensorView<const std::int32_t, 1>::contiguous(result.lengths.data(), {shape.rows}),
                     TensorView<const float, 2>::contiguous(result.scores.data(), {shape.rows, options.top_k})});
  }
  tally.expect(text::format("{} merged from {} shards", what, parts.size()),
               difference(on(problem, options, Backend::cpu), merged(parts, problem, options)));
}

}  // namespace

void check_shards(Tally& tally, double seconds) {
  Random random(53);
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  for (const workloads::Entry& entry : workloads::registry()) {
    if (entry.name == "cache_beyond_2gib" || entry.name == "page_stride_large") continue;  // copied once a shard
    const workloads::Workload made = workloads::make(entry, entry.small);
    const bool paged = std::holds_alternative<PagedKeys>(made.problem.keys);
    const std::int64_t top_k = std::clamp<std::int64_t>(made.top_k, 1, cuda::kMaxTopK);
    check_split(tally, random, made.problem, drawn_options(random, top_k, paged), text::format("shard {}", entry.name));
  }
  constexpr int kPage[] = {1, 8, 64, 256};
  for (long round = 0; spent() < seconds; ++round) {
    workloads::Size size;
    size.rows = random.below(40) + 1;
    size.keys = random.below(60000) + 5;
    size.heads = random.chance(0.5) ? 32 : 64;
    size.head_dim = 128;
    size.top_k = random.chance(0.5) ? 2048 : 100;
    size.seed = random.bits();
    workloads::Workload made = workloads::mix(size, {});
    const bool paged = random.chance(0.5);
    if (paged) made = workloads::paged(made, kPage[random.below(4)], 16, true, random.bits());
    check_split(tally, random, made.problem, drawn_options(random, size.top_k, paged),
                text::format("shard {}: Q {} N {} H {}", round, size.rows, size.keys, size.heads));
  }
}

}  // namespace dosa::tools
