// Sparse pairs: selection and scores of masked (row, key) pairs against the CPU's scores under the same mask.
#include <cstring>

#include "device_pairs.hpp"

namespace dosa::tools {
namespace {

using cuda::Tuning;
using workloads::Random;

const std::vector<std::pair<std::string, Tuning>>& variants() {
  static const std::vector<std::pair<std::string, Tuning>> kAll = {
      {"planned", {}},
      {"whole rows", {.chunks = 1}},
      {"whole rows, 3 blocks", {.chunks = 1, .grid = 3}},
      {"2 pieces", {.chunks = 2}},
      {"33 pieces, 5 blocks", {.chunks = 33, .grid = 5}},
  };
  return kAll;
}

/// Each pair by chance, or whole runs of keys; outside the windows anything.
HostMask drawn_mask(Random& random, const Problem& problem, double density) {
  const Shape shape = shape_of(problem);
  HostMask mask(shape.rows, shape.keys, 4 * random.below(3));
  for (std::uint32_t& word : mask.words) word = random.chance(0.5) ? static_cast<std::uint32_t>(random.bits()) : ~0U;
  const bool runs = random.chance(0.25) && density > 0 && density < 1;
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const Window window = window_of(*problem.ks.at(t), *problem.ke.at(t), shape.keys);
    bool in = random.chance(density);
    for (std::int64_t key = window.first; key < window.last; ++key) {
      // Runs of 100 keys on average.
      if (!runs) {
        in = random.chance(density);
      } else if (random.chance(0.01)) {
        in = random.chance(density);
      }
      mask.set(t, key, in);
    }
  }
  return mask;
}

std::string matrix_difference(const Problem& problem, const HostMask& mask, const std::vector<float>& all,
                              const std::vector<std::uint32_t>& found, std::uint32_t untouched) {
  const Shape shape = shape_of(problem);
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const Window window = window_of(*problem.ks.at(t), *problem.ke.at(t), shape.keys);
    for (std::int64_t key = 0; key < shape.keys; ++key) {
      const auto i = static_cast<std::size_t>(t * shape.keys + key);
      const bool there = key >= window.first && key < window.last && mask.has(t, key);
      const std::uint32_t wanted = there ? std::bit_cast<std::uint32_t>(all[i]) : untouched;
      if (found[i] != wanted)
        return text::format("row {} key {}: {:08x}, wanted {:08x}{}", t, key, found[i], wanted,
                            there ? "" : " (no pair)");
    }
  }
  return "";
}

void check_one(Tally& tally, const Problem& problem, const std::vector<float>& all, const Options& options,
               const HostMask& mask, const std::string& what, std::size_t first_variant, std::size_t count) {
  const OwnedSelection wanted = select_existing(
      problem, options, all, [&](std::int64_t t, std::int64_t key, bool forced) { return forced || mask.has(t, key); });
  for (std::size_t v = 0; v < count; ++v) {
    const auto& [name, forced] = variants()[(first_variant + v) % variants().size()];
    const Tuned tuned(forced);
    ResidentPairs device(problem, options, mask);
    tally.expect(text::format("{} ({})", what, name), difference(wanted, device.run()));
    if (v != 0) continue;
    const Shape shape = shape_of(problem);
    std::vector<std::uint32_t> found(all.size());
    auto* const matrix = static_cast<float*>(device.resident.staging.allocate(found.size() * 4));
    cuda::check(cudaMemset(matrix, 0x5a, found.size() * 4), "matrix");
    cuda::refine_scores_on_stream(
        *device.resident.decided, device.resident.problem, device.pairs,
        TensorView<float, 2>::contiguous(matrix, {shape.rows, shape.keys}, {DeviceKind::cuda, 0}), device.workspace,
        device.bytes, nullptr);
    cuda::check(cudaMemcpy(found.data(), matrix, found.size() * 4, cudaMemcpyDeviceToHost), "matrix");
    tally.expect(text::format("{} scores ({})", what, name), matrix_difference(problem, mask, all, found, 0x5a5a5a5aU));
  }
}

/// The same problem with codes and queries at odd addresses: `offset` bytes further, keys `gap` bytes apart.
Problem shifted(const Problem& problem, std::int64_t offset, std::int64_t gap,
                std::vector<std::vector<std::uint8_t>>& memory) {
  Problem moved = problem;
  auto& keys = std::get<ContiguousKeys>(moved.keys);
  const std::int64_t dim = keys.codes.shape[1], stride = dim + gap;
  auto& codes = memory.emplace_back(static_cast<std::size_t>(keys.codes.shape[0] * stride + 256 + offset), 0x7f);
  std::uint8_t* base = codes.data() + (256 - reinterpret_cast<std::uintptr_t>(codes.data()) % 256) % 256 + offset;
  for (std::int64_t i = 0; i < keys.codes.shape[0]; ++i)
    std::memcpy(base + i * stride, keys.codes.at(i), static_cast<std::size_t>(dim));
  keys.codes.data = base;
  keys.codes.strides = {stride, 1};
  return moved;
}

constexpr double kDensities[] = {0, 0.001, 0.01, 0.05, 0.3, 1};

void check_graph(Tally& tally) {
  const workloads::Workload made =
      workloads::mix({.rows = 40, .keys = 50000, .heads = 32, .head_dim = 128, .top_k = 512, .seed = 3}, {});
  Options options;
  options.top_k = 512;
  options.scores = true;
  const std::vector<float> all = scores_by_cpu(made.problem);
  Random random(17);
  for (const int chunks : {1, 4}) {
    const Tuned tuned({.chunks = chunks});
    HostMask mask = drawn_mask(random, made.problem, 0.01);
    ResidentPairs device(made.problem, options, mask);
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    device.queue(stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check(cudaGraphInstantiate(&ready, graph, 0), "graph");
    for (const double density : kDensities) {
      // The same memory layout, other bits.
      for (std::int64_t t = 0; t < 40; ++t)
        for (std::int64_t key = 0; key < 50000; ++key) mask.set(t, key, random.chance(density));
      device.put(mask);
      cuda::check(cudaGraphLaunch(ready, stream), "replay");
      cuda::check(cudaStreamSynchronize(stream), "replay");
      const OwnedSelection wanted =
          select_existing(made.problem, options, all,
                          [&](std::int64_t t, std::int64_t key, bool forced) { return forced || mask.has(t, key); });
      tally.expect(text::format("pairs replayed, {} pieces, density {}", chunks, density),
                   difference(wanted, device.resident.fetch()));
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

}  // namespace

void check_pairs(Tally& tally, double seconds, bool quick) {
  Random random(41);
  std::size_t turn = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  for (const workloads::Entry& entry : workloads::registry()) {
    if (entry.name == "cache_beyond_2gib" && quick) continue;
    const workloads::Workload made = workloads::make(entry, entry.small);
    const bool paged = std::holds_alternative<PagedKeys>(made.problem.keys);
    const std::vector<float> all = scores_by_cpu(made.problem);
    const std::int64_t top_k = std::clamp<std::int64_t>(made.top_k, 1, cuda::kMaxTopK);
    for (int round = 0; round < (quick ? 1 : 3); ++round, ++turn) {
      const double density = kDensities[turn % std::size(kDensities)];
      const Options options = drawn_options(random, top_k, paged);
      check_one(tally, made.problem, all, options, drawn_mask(random, made.problem, density),
                text::format("pairs {} density {}", entry.name, density), turn, quick ? 1 : 2);
    }
  }
  if (quick) return;
  check_graph(tally);

  for (long round = 0; spent() < seconds; ++round, ++turn) {
    Drawn drawn = drawn_problem(random, "pairs", round, 30, 40000);
    workloads::Workload& made = drawn.made;
    std::vector<std::vector<std::uint8_t>> memory;
    if (!drawn.paged && random.chance(0.4)) {
      const std::int64_t offset = random.below(17), gap = random.chance(0.5) ? 0 : random.below(20);
      made.problem = shifted(made.problem, offset, gap, memory);
      drawn.what += text::format(" offset {} gap {}", offset, gap);
    }
    const double density = kDensities[random.below(std::size(kDensities))];
    const Options options = drawn_options(random, made.top_k, drawn.paged);
    check_one(tally, made.problem, scores_by_cpu(made.problem), options, drawn_mask(random, made.problem, density),
              text::format("{}{} density {}", drawn.what, described(options), density), turn, 2);
  }
}

}  // namespace dosa::tools
