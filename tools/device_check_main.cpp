// Parity of the CUDA backend with the CPU's model, byte for byte: recorded bits of the served kernel, every named
// workload, drawn shapes, forced splits and loaders, repeats, graph replays, streams side by side, sparse pairs,
// shards, pages that do not exist, full sizes. Usage: device_check [--vectors DIR] [--seconds S] [--quick] [--progress]
// [--json FILE] [--commit TEXT] [SECTION...]; exit 1 where anything differs.
#include <cuda_runtime.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "cuda/hardware.hpp"
#include "device_check.hpp"
#include "golden/vector_file.hpp"

namespace dosa::tools {
namespace {

using cuda::tuning;
using cuda::Tuning;
using workloads::Random;

const std::vector<std::pair<std::string, Tuning>>& variants() {
  static const std::vector<std::pair<std::string, Tuning>> kAll = {
      {"planned", {}},
      {"fused, no sample", {.chunks = 1, .sample_keys = 0}},
      {"fused, small kernels", {.chunks = 1, .rows_together = 4}},
      {"5 pieces, 8 rows", {.chunks = 5, .rows_together = 8}},
      {"33 pieces, sample 2048", {.chunks = 33, .sample_keys = 2048, .rows_together = 64}},
      {"plain loader", {.plain_loader = true, .few = 0}},
      {"plain loader, 7 pieces", {.chunks = 7, .plain_loader = true}},
      {"3 blocks in flight", {.chunks = 1, .rows_together = 64, .grid = 3}},
      {"few", {.few = 1}},
      {"few, 3 blocks", {.grid = 3, .few = 1}},
      {"few, plain loader", {.plain_loader = true, .few = 1}},
  };
  return kAll;
}

/// Variants that force the kernel for few rows where it cannot serve the call are left out, and counted.
long few_ran = 0, few_left_out = 0;
bool applies(const Problem& problem, const Options& options) {
  if (tuning().few != 1) return true;
  const bool serves = cuda::layout_of(shape_of(problem), options, cuda::hardware().multiprocessors).few.applies();
  (serves ? few_ran : few_left_out) += 1;
  return serves;
}

void compare(Tally& tally, const Problem& problem, const Options& options, const std::string& what,
             std::size_t first_variant, std::size_t variant_count) {
  const OwnedSelection wanted = on(problem, options, Backend::cpu);
  for (std::size_t v = 0; v < variant_count; ++v) {
    const auto& [name, forced] = variants()[(first_variant + v) % variants().size()];
    tuning() = forced;
    if (!applies(problem, options)) {
      tuning() = {};
      continue;
    }
    tally.begins(text::format("{} ({})", what, name));
    try {
      const OwnedSelection found = on(problem, options, Backend::cuda);
      tuning() = {};
      tally.expect(text::format("{} ({})", what, name), difference(wanted, found));
    } catch (const Error&) {
      text::print(stdout, "FAILED {} ({})\n", what, name);
      throw;
    }
  }
}

void check_vectors(Tally& tally, const std::string& folder) {
  long bits = 0;
  for (const auto& path : test::vector_files(folder, false)) {
    const test::RecordedLogits recorded{test::VectorFile(path)};
    Problem problem;
    problem.q = TensorView<const std::uint8_t, 3>::contiguous(recorded.q.data(),
                                                              {recorded.queries, recorded.heads, recorded.head_dim});
    problem.weights =
        TensorView<const float, 2>::contiguous(recorded.weights.data(), {recorded.queries, recorded.heads});
    problem.keys = ContiguousKeys{
        TensorView<const std::uint8_t, 2>::contiguous(recorded.k.data(), {recorded.keys, recorded.head_dim}),
        TensorView<const float, 1>::contiguous(recorded.k_scale.data(), {recorded.keys})};
    problem.ks = TensorView<const std::int32_t, 1>::contiguous(recorded.ks.data(), {recorded.queries});
    problem.ke = TensorView<const std::int32_t, 1>::contiguous(recorded.ke.data(), {recorded.queries});
    Options options;
    options.model = ScoreModel::sm90;
    options.backend = Backend::cuda;
    for (const auto& [name, forced] : variants()) {
      if (forced.few == 1) continue;  // scores of every pair do not go through it
      tuning() = forced;
      std::vector<std::uint32_t> found(recorded.logits.size());
      scores(
          problem, options,
          TensorView<float, 2>::contiguous(reinterpret_cast<float*>(found.data()), {recorded.queries, recorded.keys}));
      tuning() = {};
      std::size_t differ = 0;
      for (std::size_t i = 0; i < found.size(); ++i) differ += found[i] != recorded.logits[i] ? 1U : 0U;
      bits += static_cast<long>(found.size()) * 32;
      tally.expect(text::format("{} ({})", recorded.name, name),
                   differ == 0 ? "" : text::format("{} of {} logits", differ, found.size()));
    }
  }
  text::print(stdout, "vectors: {} bits compared\n", bits);
}

void check_workloads(Tally& tally, bool quick) {
  Random random(11);
  std::size_t variant = 0;
  for (const workloads::Entry& entry : workloads::registry()) {
    for (int size = 0; size < (quick ? 1 : 2); ++size) {
      workloads::Size wanted = entry.small;
      if (size == 1)
        wanted.rows = 24, wanted.keys = 40000, wanted.heads = 32, wanted.head_dim = 128, wanted.top_k = 2048;
      const workloads::Workload made = workloads::make(entry, wanted);
      const bool paged = std::holds_alternative<PagedKeys>(made.problem.keys);
      Options options;
      options.top_k = std::min<std::int64_t>(std::max<std::int64_t>(made.top_k, 1), cuda::kMaxTopK);
      options.scores = true;
      compare(tally, made.problem, options, std::string(entry.name), variant, quick ? 3 : 4);
      variant += 3;
      compare(tally, made.problem, drawn_options(random, options.top_k, paged), std::string(entry.name) + " drawn",
              variant, 2);
      variant += 1;
    }
  }
}

void check_sweep(Tally& tally, double seconds) {
  Random random(29);
  const auto start = std::chrono::steady_clock::now();
  for (long round = 0; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       ++round) {
    const Drawn drawn = drawn_problem(random, "sweep", round, 40, 30000);
    const Options options = drawn_options(random, drawn.made.top_k, drawn.paged);
    compare(tally, drawn.made.problem, options, drawn.what + described(options),
            static_cast<std::size_t>(random.below(static_cast<std::int64_t>(variants().size()))), 2);
  }
}

void check_repeats(Tally& tally) {
  for (const char* entry_name : {"concentrated", "relu_plateau", "all_equal", "few_values_50", "sorted_up"}) {
    workloads::Size size;
    size.rows = 40, size.keys = 100000, size.heads = 32, size.head_dim = 128, size.top_k = 2048;
    const workloads::Workload made = workloads::make(workloads::find(entry_name), size);
    Options options;
    options.top_k = 2048;
    options.scores = true;
    const OwnedSelection wanted = on(made.problem, options, Backend::cpu);
    for (int repeat = 0; repeat < 20; ++repeat) {
      tuning().chunks = repeat % 2 == 0 ? 1 : 0;
      tally.expect(text::format("{} repeat {}", entry_name, repeat),
                   difference(wanted, on(made.problem, options, Backend::cuda)));
      tuning() = {};
    }
  }
}

void check_graphs(Tally& tally, const std::vector<std::int64_t>& row_counts) {
  for (const std::int64_t rows : row_counts) {
    workloads::Size size;
    size.rows = rows, size.keys = 50000, size.heads = 32, size.head_dim = 128, size.top_k = 512;
    const workloads::Workload made = workloads::mix(size, {});
    Options options;
    options.top_k = 512;
    options.scores = true;
    Resident resident(made.problem, options);
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    resident.queue(stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check(cudaGraphInstantiate(&ready, graph, 0), "graph");
    Random random(5);
    for (int replay = 0; replay < 6; ++replay) {
      // Other windows in the same tensors: empty, short, whole, shifted.
      std::vector<std::int32_t> ks(static_cast<std::size_t>(rows)), ke(static_cast<std::size_t>(rows));
      for (std::size_t t = 0; t < ks.size(); ++t) {
        ks[t] = random.chance(0.5) ? 0 : static_cast<std::int32_t>(random.below(60000)) - 5000;
        ke[t] = random.chance(0.3) ? 50000 : static_cast<std::int32_t>(random.below(60000)) - 5000;
      }
      Problem changed = made.problem;
      changed.ks = TensorView<const std::int32_t, 1>::contiguous(ks.data(), {rows});
      changed.ke = TensorView<const std::int32_t, 1>::contiguous(ke.data(), {rows});
      const auto copy = [&](const std::int32_t* to, const std::vector<std::int32_t>& from) {
        cuda::check(cudaMemcpy(const_cast<std::int32_t*>(to), from.data(), from.size() * 4, cudaMemcpyHostToDevice),
                    "lengths");
      };
      copy(resident.problem.ks.data, ks);
      copy(resident.problem.ke.data, ke);
      tally.begins(text::format("graph of {} rows, replay {}", rows, replay));
      cuda::check(cudaGraphLaunch(ready, stream), "replay");
      cuda::check(cudaStreamSynchronize(stream), "replay");
      tally.expect(text::format("graph of {} rows, replay {}", rows, replay),
                   difference(on(changed, options, Backend::cpu), resident.fetch()));
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

void check_streams(Tally& tally, std::int64_t more_rows) {
  Options options;
  options.top_k = 1024;
  std::vector<std::unique_ptr<Resident>> residents;
  std::vector<OwnedSelection> wanted;
  std::vector<cudaStream_t> streams;
  for (int i = 0; i < 4; ++i) {
    workloads::Size size;
    size.rows = more_rows * i + 5, size.keys = 30000, size.heads = i % 2 == 0 ? 32 : 64, size.head_dim = 128,
    size.top_k = 1024;
    size.seed = static_cast<std::uint64_t>(i) + 1;
    const workloads::Workload made = workloads::mix(size, {});
    residents.push_back(std::make_unique<Resident>(made.problem, options));
    wanted.push_back(on(made.problem, options, Backend::cpu));
    streams.emplace_back();
    cuda::check(cudaStreamCreateWithFlags(&streams.back(), cudaStreamNonBlocking), "stream");
  }
  for (int round = 0; round < 10; ++round) {
    tally.begins(text::format("streams, round {}", round));
    for (std::size_t i = 0; i < residents.size(); ++i) residents[i]->queue(streams[i]);
    cuda::check(cudaDeviceSynchronize(), "streams");
    for (std::size_t i = 0; i < residents.size(); ++i)
      tally.expect(text::format("stream {} round {}", i, round), difference(wanted[i], residents[i]->fetch()));
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

/// The kernel for few rows wherever it can serve: named workloads, drawn shapes, graph replays, streams side by side.
void check_few(Tally& tally, double seconds) {
  Random random(41);
  const auto& all = variants();
  const auto first = static_cast<std::size_t>(
      std::find_if(all.begin(), all.end(), [](const auto& variant) { return variant.second.few == 1; }) - all.begin());
  const auto few = all.size() - first;
  for (const workloads::Entry& entry : workloads::registry())
    for (const std::int64_t rows : {1, 3, 7}) {
      workloads::Size size = entry.small;
      size.rows = rows, size.keys = 30000 + 9000 * rows, size.heads = 32, size.head_dim = 128, size.top_k = 2048;
      const workloads::Workload made = workloads::make(entry, size);
      const bool paged = std::holds_alternative<PagedKeys>(made.problem.keys);
      Options options;
      options.top_k = std::min<std::int64_t>(std::max<std::int64_t>(made.top_k, 1), cuda::kMaxTopK);
      options.scores = true;
      compare(tally, made.problem, options, text::format("few: {}, {} rows", entry.name, rows), first, few);
      compare(tally, made.problem, drawn_options(random, options.top_k, paged),
              text::format("few: {} drawn, {} rows", entry.name, rows), first, few);
    }
  const auto start = std::chrono::steady_clock::now();
  for (long round = 0; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       ++round) {
    const Drawn drawn = drawn_problem(random, "few sweep", round, 8, 60000);
    const Options options = drawn_options(random, drawn.made.top_k, drawn.paged);
    compare(tally, drawn.made.problem, options, drawn.what + described(options), first, few);
  }
  tuning() = {.few = 1};
  check_graphs(tally, {1, 3, 8});
  check_streams(tally, 1);
  tuning() = {};
}

int main_checked(int argc, char** argv) {
  std::string vectors, json, commit = "unknown";
  double seconds = 60;
  bool quick = false, progress = false;
  std::set<std::string> sections;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--vectors" && i + 1 < argc) {
      vectors = argv[++i];
    } else if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (word == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (word == "--commit" && i + 1 < argc) {
      commit = argv[++i];
    } else if (word == "--quick") {
      quick = true;
    } else if (word == "--progress") {
      progress = true;
    } else {
      sections.insert(word);
    }
  }
  for (const BackendInfo& backend : info().backends)
    if (backend.backend == Backend::cuda) {
      text::print(stdout, "cuda: {}\n", backend.why);
      if (!backend.available) return 5;
    }
  const auto wanted = [&](const char* section) { return sections.empty() || sections.contains(section); };
  Tally tally;
  tally.progress = progress;
  if (wanted("vectors") && !vectors.empty()) check_vectors(tally, vectors), tally.section("vectors");
  if (wanted("workloads")) check_workloads(tally, quick), tally.section("workloads");
  if (wanted("repeats")) check_repeats(tally), tally.section("repeats");
  if (wanted("graphs")) check_graphs(tally, {3, 8, 40, 2400}), tally.section("graphs");
  if (wanted("streams")) check_streams(tally, 30), tally.section("streams");
  if (wanted("few")) check_few(tally, seconds / 2), tally.section("few");
  if (wanted("pairs")) check_pairs(tally, seconds / 2, quick), tally.section("pairs");
  if (wanted("shards")) check_shards(tally, seconds / 4), tally.section("shards");
  if (wanted("pages")) check_pages(tally, quick), tally.section("pages");
  if (wanted("full")) check_full(tally, quick), tally.section("full");
  if (sections.contains("adversarial")) check_adversarial(tally), tally.section("adversarial");
  if (wanted("sweep")) check_sweep(tally, seconds), tally.section("sweep");
  text::print(stdout, "kernel for few rows: forced in {} calls, did not apply in {}\n", few_ran, few_left_out);
  text::print(stdout, "{} of {} comparisons differ\n", tally.wrong(), tally.compared());
  if (!json.empty())
    std::ofstream(json) << json_head(commit,
                                     text::format("byte for byte against the CPU's sm90 model{}, drawn shapes for "
                                                  "{:.0f} s a section",
                                                  quick ? ", small sizes" : "", seconds))
                        << " \"sections\": [\n"
                        << tally.sections() << "\n ]}\n";
  return tally.wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dosa::tools

int main(int argc, char** argv) {
  try {
    return dosa::tools::main_checked(argc, argv);
  } catch (const std::exception& error) {
    dosa::text::print(stdout, "device_check: {}\n", error.what());
    return 2;
  }
}
