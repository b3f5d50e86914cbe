// Times complete calls of the CUDA backend on one GPU, and writes what was measured as JSON.
// Usage: device_bench [--json FILE] [--seconds S] [--commit TEXT] [--keys N] [--heads H] [--rows Q] [--few] [--short]
// [--trace FILE]... [CASE...]; cases: prefill, few, launches, decode, hard, pairs, traces (the files alone), check
// (rows of what is timed against the CPU).
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <thread>

#include "cuda/hardware.hpp"
#include "cuda/layout.hpp"
#include "cuda/refine.hpp"
#include "cuda/staging.hpp"
#include "device_support.hpp"
#include "workloads/random.hpp"
#include "workloads/workloads.hpp"

namespace dosa::tools {
namespace {

using workloads::Random;
constexpr std::int64_t kDim = 128;

std::uint8_t e4m3(float x) {
  const float magnitude = std::min(std::fabs(x), 448.0F);
  int code = 0;
  if (magnitude >= 0x1p-6F) {
    int exponent = 0;
    const float m = std::frexp(magnitude, &exponent);  // [0.5, 1)
    code = static_cast<int>(std::nearbyint(m * 16));   // 8..16
    code = (exponent + 6) * 8 + (code - 8);
  } else {
    code = static_cast<int>(std::nearbyint(magnitude * 0x1p9F));
  }
  return static_cast<std::uint8_t>(std::min(code, 126) | (x < 0 ? 128 : 0));
}

/// N(0,1) vectors, each scaled so that its largest magnitude is 448; the scale undoes it.
void draw(std::uint8_t* codes, float* scales, std::int64_t vectors, std::uint64_t seed) {
  const unsigned threads = std::max(std::thread::hardware_concurrency(), 1U);
  std::vector<std::thread> pool;
  for (unsigned w = 0; w < threads; ++w)
    pool.emplace_back([=] {
      for (std::int64_t v = vectors * w / threads; v < vectors * (w + 1) / threads; ++v) {
        Random random(seed * 1000003 + static_cast<std::uint64_t>(v));
        float values[kDim], largest = 0;
        for (float& value : values) {
          // Four 16-bit uniforms a draw: near enough to normal for timing, and quick.
          const std::uint64_t bits = random.bits();
          float sum = -2;
          for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffffU) * 0x1p-16F;
          value = sum * 1.7320508F;
          largest = std::max(largest, std::fabs(value));
        }
        const float scale = largest / 448.0F;
        for (std::int64_t d = 0; d < kDim; ++d) codes[v * kDim + d] = e4m3(values[d] / scale);
        if (scales != nullptr) scales[v] = scale;
      }
    });
  for (std::thread& worker : pool) worker.join();
}

struct Data {
  std::vector<std::uint8_t> q, k;
  std::vector<float> weights, scales;
  std::vector<std::int32_t> ks, ke;
  Problem problem;
};

/// Queries at the end of a causal context.
Data make(std::int64_t rows, std::int64_t keys, std::int64_t heads, bool same_length = false) {
  Data data;
  data.q.resize(static_cast<std::size_t>(rows * heads * kDim));
  data.k.resize(static_cast<std::size_t>(keys * kDim));
  data.scales.resize(static_cast<std::size_t>(keys));
  data.weights.resize(static_cast<std::size_t>(rows * heads));
  draw(data.q.data(), nullptr, rows * heads, 1);
  draw(data.k.data(), data.scales.data(), keys, 2);
  Random random(3);
  for (float& weight : data.weights) weight = static_cast<float>(random.normal()) * 0.01F;
  for (std::int64_t t = 0; t < rows; ++t) {
    data.ks.push_back(0);
    data.ke.push_back(static_cast<std::int32_t>(same_length ? keys : keys - rows + t + 1));
  }
  data.problem.q = TensorView<const std::uint8_t, 3>::contiguous(data.q.data(), {rows, heads, kDim});
  data.problem.weights = TensorView<const float, 2>::contiguous(data.weights.data(), {rows, heads});
  data.problem.keys = ContiguousKeys{TensorView<const std::uint8_t, 2>::contiguous(data.k.data(), {keys, kDim}),
                                     TensorView<const float, 1>::contiguous(data.scales.data(), {keys})};
  data.problem.ks = TensorView<const std::int32_t, 1>::contiguous(data.ks.data(), {rows});
  data.problem.ke = TensorView<const std::int32_t, 1>::contiguous(data.ke.data(), {rows});
  return data;
}

struct Record {
  std::string name;
  std::int64_t heads, keys, rows, top_k;
  double median, p10, p90;
  int repeats;
  std::size_t workspace;
  DeviceCounters counters;
};
std::vector<Record> records;

/// What the device counted in its last run: at the start of the aligned workspace.
DeviceCounters counters_of(const void* workspace) {
  DeviceCounters counters;
  const auto start = (reinterpret_cast<std::uintptr_t>(workspace) + 255) / 256 * 256;
  cuda::check(cudaMemcpy(&counters, reinterpret_cast<const void*>(start), sizeof counters, cudaMemcpyDeviceToHost),
              "counters");
  return counters;
}

double at(std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void report(Record record, std::vector<double> times) {
  // The first third warms the card up to the clock that its power limit sustains.
  if (times.size() >= 6) times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 3));
  std::sort(times.begin(), times.end());
  record.median = at(times, 0.5), record.p10 = at(times, 0.1), record.p90 = at(times, 0.9);
  record.repeats = static_cast<int>(times.size());
  const double flops = 2.0 * kDim * static_cast<double>(record.rows * record.heads) * static_cast<double>(record.keys);
  const double tflops = flops / record.median * 1e-9;
  text::print(
      stdout,
      "{:<22} H {:>3} keys {:>8} rows {:>6} K {:>4}: {:>9.4f} ms (p10 {:.4f} p90 {:.4f}, {} runs) {:>5.0f} TFLOP/s, "
      "{} candidates a row, {} compactions, {} repeats, {} MiB\n",
      record.name, record.heads, record.keys, record.rows, record.top_k, record.median, record.p10, record.p90,
      record.repeats, tflops, record.counters.candidates / static_cast<std::uint64_t>(record.rows),
      record.counters.compactions, record.counters.repeats, record.workspace >> 20U);
  std::fflush(stdout);
  records.push_back(record);
}

Options options_of(std::int64_t top_k) {
  Options options;
  options.top_k = top_k;
  options.backend = Backend::cuda;
  options.model = ScoreModel::sm90;
  return options;
}

struct Outputs {
  Outputs(cuda::Staging& staging, std::int64_t rows, std::int64_t top_k) {
    selection.indices = TensorView<std::int32_t, 2>::contiguous(
        static_cast<std::int32_t*>(staging.allocate(static_cast<std::size_t>(rows * top_k) * 4)), {rows, top_k},
        {DeviceKind::cuda, 0});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(
        static_cast<std::int32_t*>(staging.allocate(static_cast<std::size_t>(rows) * 4)), {rows},
        {DeviceKind::cuda, 0});
  }
  Selection selection;
};

/// Calls back to back on one stream, each timed by events, for `seconds`.
template <class Queue>
std::vector<double> times_of(double seconds, Queue&& queue) {
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::vector<double> times;
  double sum = 0;
  std::vector<cudaEvent_t> events(3);
  for (cudaEvent_t& event : events) cuda::check(cudaEventCreate(&event), "event");
  // Two calls in flight, so that the card never waits for the host.
  cuda::check(cudaEventRecord(events[0], stream), "event");
  for (int i = 0; sum < seconds * 1e3 && i < 2000; ++i) {
    queue(stream);
    cuda::check(cudaEventRecord(events[static_cast<std::size_t>(i + 1) % 3], stream), "event");
    if (i == 0) continue;
    const auto end = static_cast<std::size_t>(i) % 3, begin = static_cast<std::size_t>(i - 1) % 3;
    cuda::check(cudaEventSynchronize(events[end]), "run");
    float elapsed = 0;
    cuda::check(cudaEventElapsedTime(&elapsed, events[begin], events[end]), "time");
    times.push_back(elapsed);
    sum += elapsed;
  }
  cuda::check(cudaStreamSynchronize(stream), "run");
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  cudaStreamDestroy(stream);
  return times;
}

void time_call(const std::string& what, const Problem& host, std::int64_t top_k, double seconds) {
  cuda::Staging staging({DeviceKind::cuda, 0});
  const Problem problem = staging.upload(host);
  const std::int64_t rows = problem.q.shape[0];
  const Plan decided = plan(shape_of(problem), options_of(top_k));
  const Outputs outputs(staging, rows, top_k);
  const std::size_t bytes = decided.workspace_bytes();
  void* const workspace = staging.allocate(bytes);
  const std::vector<double> times = times_of(seconds, [&](cudaStream_t stream) {
    run_on_stream(decided, problem, outputs.selection, workspace, bytes, stream);
  });
  Record record{what, problem.q.shape[1], shape_of(problem).keys, rows, top_k, 0, 0, 0, 0, bytes, {}};
  record.counters = counters_of(workspace);
  report(record, times);
}

/// Sparse pairs: masks drawn bit by bit, independent between rows (no two rows share their keys: the worst case for the
/// caches), at shares of 2^-7, 2^-6, 2^-5 and 2^-4. TFLOP/s count every pair of the problem, scored or not.
void time_pairs(const Data& data, std::int64_t top_k, double seconds) {
  cuda::Staging staging({DeviceKind::cuda, 0});
  const Problem problem = staging.upload(data.problem);
  const Shape shape = shape_of(problem);
  const Plan decided = plan(shape, options_of(top_k));
  const Outputs outputs(staging, shape.rows, top_k);
  const std::size_t bytes = cuda::refine_workspace_bytes(decided);
  void* const workspace = staging.allocate(bytes);
  const std::int64_t row_words = cuda::mask_words(shape.keys);
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(shape.rows * row_words));
  auto* const words = static_cast<std::uint32_t*>(staging.allocate(mask.size() * 4));
  for (const int halvings : {7, 6, 5, 4}) {
    const unsigned threads = std::max(std::thread::hardware_concurrency(), 1U);
    std::vector<std::thread> pool;
    for (unsigned w = 0; w < threads; ++w)
      pool.emplace_back([&, w] {
        Random random(77 + w);
        const std::size_t pairs = mask.size() / 2;  // of words: a row has a multiple of 4
        for (std::size_t i = pairs * w / threads; i < pairs * (w + 1) / threads; ++i) {
          std::uint64_t bits = random.bits();
          for (int h = 1; h < halvings; ++h) bits &= random.bits();
          mask[2 * i] = static_cast<std::uint32_t>(bits);
          mask[2 * i + 1] = static_cast<std::uint32_t>(bits >> 32U);
        }
      });
    for (std::thread& worker : pool) worker.join();
    cuda::check(cudaMemcpy(words, mask.data(), mask.size() * 4, cudaMemcpyHostToDevice), "mask");
    const std::vector<double> times = times_of(seconds, [&](cudaStream_t stream) {
      cuda::refine_on_stream(decided, problem, {words, row_words}, outputs.selection, workspace, bytes, stream);
    });
    Record record{text::format("pairs, 1 in {}", 1 << halvings),
                  shape.heads,
                  shape.keys,
                  shape.rows,
                  top_k,
                  0,
                  0,
                  0,
                  0,
                  bytes,
                  {}};
    record.counters = counters_of(workspace);
    report(record, times);
    text::print(stdout, "  {} tiles of up to 64 pairs a row\n",
                record.counters.stages_plain / static_cast<std::uint64_t>(shape.rows));
  }
}

/// Few rows: graphs of 30 calls over three copies of the keys in turn, so that L2 does not serve them.
void time_few(const std::string& what, const Problem& host, std::int64_t top_k, double seconds) {
  constexpr int kCopies = 3, kCalls = 30;
  cuda::Staging staging({DeviceKind::cuda, 0});
  std::vector<Problem> problems;
  for (int i = 0; i < kCopies; ++i) problems.push_back(staging.upload(host));
  const std::int64_t rows = host.q.shape[0];
  const Plan decided = plan(shape_of(problems[0]), options_of(top_k));
  const Outputs outputs(staging, rows, top_k);
  const std::size_t bytes = decided.workspace_bytes();
  void* const workspace = staging.allocate(bytes);
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kCalls; ++i)
    run_on_stream(decided, problems[static_cast<std::size_t>(i % kCopies)], outputs.selection, workspace, bytes,
                  stream);
  cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
  cuda::check(cudaGraphInstantiate(&ready, graph, 0), "graph");
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "event");
  cuda::check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  double sum = 0;
  while (sum < seconds * 1e3 && times.size() < 1000) {
    cuda::check(cudaEventRecord(begin, stream), "event");
    cuda::check(cudaGraphLaunch(ready, stream), "graph");
    cuda::check(cudaEventRecord(end, stream), "event");
    cuda::check(cudaEventSynchronize(end), "run");
    float elapsed = 0;
    cuda::check(cudaEventElapsedTime(&elapsed, begin, end), "time");
    times.push_back(elapsed / kCalls);
    sum += elapsed;
  }
  Record record{what, host.q.shape[1], shape_of(host).keys, rows, top_k, 0, 0, 0, 0, bytes, {}};
  record.counters = counters_of(workspace);
  report(record, times);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// A few rows of a timed problem of contiguous keys against the CPU's model.
void check_rows(const Problem& whole, std::int64_t top_k) {
  Problem part = whole;
  const std::int64_t rows = std::min<std::int64_t>(part.q.shape[0], 4), skip = part.q.shape[0] - rows;
  part.q.data = part.q.at(skip), part.q.shape[0] = rows;
  part.weights.data = part.weights.at(skip), part.weights.shape[0] = rows;
  part.ks.data = part.ks.at(skip), part.ks.shape[0] = rows;
  part.ke.data = part.ke.at(skip), part.ke.shape[0] = rows;
  Options options = options_of(top_k);
  const OwnedSelection all = select(whole, options);
  options.backend = Backend::cpu;
  const OwnedSelection wanted = select(part, options);
  OwnedSelection found = wanted;
  std::copy(all.indices.end() - rows * top_k, all.indices.end(), found.indices.begin());
  std::copy(all.lengths.end() - rows, all.lengths.end(), found.lengths.begin());
  const std::string wrong = difference(wanted, found);
  text::print(stdout, "last {} rows of {} x {} keys against the CPU: {}\n", rows, whole.q.shape[0],
              shape_of(whole).keys, wrong.empty() ? "equal" : wrong);
  std::fflush(stdout);
  if (!wrong.empty()) throw Error(ErrorKind::internal, "what is timed is wrong");
}

/// A trace's tensors where an allocator would have put them; a file may start them at any byte, which the copy engine
/// cannot describe.
Data aligned(const Problem& file) {
  Data data;
  const auto copy = [](auto& to, const auto& view) {
    std::int64_t count = 1;
    for (const std::int64_t extent : view.shape) count *= extent;
    to.assign(view.data, view.data + count);  // trace files are contiguous
  };
  const auto& keys = std::get<ContiguousKeys>(file.keys);
  copy(data.q, file.q), copy(data.weights, file.weights), copy(data.ks, file.ks), copy(data.ke, file.ke);
  copy(data.k, keys.codes), copy(data.scales, keys.scales);
  data.problem = file;
  data.problem.q.data = data.q.data(), data.problem.weights.data = data.weights.data();
  data.problem.ks.data = data.ks.data(), data.problem.ke.data = data.ke.data();
  data.problem.keys = ContiguousKeys{TensorView<const std::uint8_t, 2>::contiguous(data.k.data(), keys.codes.shape),
                                     TensorView<const float, 1>::contiguous(data.scales.data(), keys.scales.shape)};
  return data;
}

/// Decode of many sequences: one query each, keys of each in its own shuffled pages of 64.
void time_decode(std::int64_t requests, std::int64_t keys, double seconds) {
  constexpr std::int64_t kPage = 64, kPageBytes = kPage * (kDim + 4);
  const std::int64_t columns = keys / kPage, pages = requests * columns;
  Data data = make(requests, requests * keys, 32, true);
  std::vector<std::uint8_t> cache(static_cast<std::size_t>(pages * kPageBytes));
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  for (std::int64_t page = 0; page < pages; ++page) {
    std::memcpy(&cache[static_cast<std::size_t>(page * kPageBytes)],
                &data.k[static_cast<std::size_t>(page * kPage * kDim)], kPage * kDim);
    std::memcpy(&cache[static_cast<std::size_t>(page * kPageBytes + kPage * kDim)],
                &data.scales[static_cast<std::size_t>(page * kPage)], kPage * 4);
    table[static_cast<std::size_t>(page)] = static_cast<std::int32_t>(page * 1000003 % pages);  // coprime: a shuffle
  }
  for (std::int32_t& end : data.ke) end = static_cast<std::int32_t>(keys);
  PagedKeys paged;
  paged.cache = cache.data();
  paged.pages = pages, paged.page_stride = kPageBytes, paged.page_size = kPage, paged.head_dim = kDim;
  paged.block_table = TensorView<const std::int32_t, 2>::contiguous(table.data(), {requests, columns});
  data.problem.keys = paged;
  time_call(text::format("decode, {} sequences", requests), data.problem, 2048, seconds);
}

void write_json(const std::string& path, const std::string& commit) {
  std::ofstream out(path);
  out << json_head(commit, "clocks as found, CUDA events, complete calls, first third of the repeats dropped")
      << " \"results\": [\n";
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& r = records[i];
    out << text::format(
        "  {{\"case\": \"{}\", \"heads\": {}, \"head_dim\": 128, \"keys\": {}, \"rows\": {}, \"top_k\": {}, "
        "\"ms_median\": {:.5f}, \"ms_p10\": {:.5f}, \"ms_p90\": {:.5f}, \"repeats\": {}, \"workspace_bytes\": {}, "
        "\"candidates\": {}, \"compactions\": {}, \"repeated_rows\": {}}}{}\n",
        r.name, r.heads, r.keys, r.rows, r.top_k, r.median, r.p10, r.p90, r.repeats, r.workspace, r.counters.candidates,
        r.counters.compactions, r.counters.repeats, i + 1 < records.size() ? "," : "");
  }
  out << " ]}\n";
}

/// The problem with its keys rearranged, so that scores come in a hard order or shape.
void time_hard(double seconds) {
  constexpr std::int64_t kRows = 16384, kKeys = 131072;
  Data data = make(kRows, kKeys, 32);
  time_call("random", data.problem, 2048, seconds);
  const auto with_scales = [&](const std::string& what, auto&& scale_of) {
    for (std::int64_t i = 0; i < kKeys; ++i) data.scales[static_cast<std::size_t>(i)] = scale_of(i);
    time_call(what, data.problem, 2048, seconds);
  };
  // Positive weights and one key direction repeated: the score is a function of the scale alone.
  for (float& weight : data.weights) weight = std::fabs(weight) + 0.001F;
  for (std::int64_t i = 1; i < kKeys; ++i)
    std::memcpy(&data.k[static_cast<std::size_t>(i * kDim)], data.k.data(), kDim);
  with_scales("all equal", [](std::int64_t) { return 1.0F; });
  with_scales("sorted ascending", [](std::int64_t i) { return 1.0F + static_cast<float>(i) * 0x1p-17F; });
  with_scales("sorted descending", [](std::int64_t i) { return 2.0F - static_cast<float>(i) * 0x1p-17F; });
  with_scales("one coarse bin", [](std::int64_t i) {
    return 1.0F + static_cast<float>((static_cast<std::uint64_t>(i) * 2654435761U) & 0xffffffU) * 0x1p-32F;
  });
  with_scales("scaled to the top", [](std::int64_t i) {
    return 0x1p100F * (1.0F + static_cast<float>((static_cast<std::uint64_t>(i) * 2654435761U) & 0xffffffU) * 0x1p-24F);
  });
  with_scales("plateau", [](std::int64_t i) { return i % 100 == 0 ? 2.0F : 1.0F; });
  with_scales("50 values", [](std::int64_t i) {
    return 1.0F + static_cast<float>((static_cast<std::uint64_t>(i) * 2654435761U >> 8U) % 50) * 0.02F;
  });
}

/// Few rows in one launch and in the four that many rows take, in turns: where the plan should change from one to the
/// other.
void time_launches(const std::vector<std::int64_t>& head_counts, double seconds) {
  for (const std::int64_t heads : head_counts)
    for (const std::int64_t keys : {4096, 16384, 65536, 262144, 1048576})
      for (const std::int64_t rows : {1, 2, 4}) {
        const Data data = make(rows, keys, heads);
        for (const int few : {1, 0}) {
          cuda::tuning().few = few;
          const Shape shape = shape_of(data.problem);
          const bool applies = cuda::layout_of(shape, options_of(2048), cuda::hardware().multiprocessors).few.applies();
          if (applies != (few == 1)) continue;
          time_few(few == 1 ? "one launch" : "four launches", data.problem, 2048, seconds);
        }
        cuda::tuning() = {};
      }
}

int main_timed(int argc, char** argv) {
  std::string json, commit = "unknown";
  double seconds = 1;
  std::vector<std::string> cases, traces;
  std::int64_t few_keys = 1048576;
  std::vector<std::int64_t> sizes = {131072, 262144, 524288, 1048576};
  std::vector<std::int64_t> head_counts = {32, 64}, row_counts = {1, 2, 4, 8, 32, 128};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (word == "--commit" && i + 1 < argc) {
      commit = argv[++i];
    } else if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (word == "--keys" && i + 1 < argc) {
      sizes = {std::atoll(argv[++i])};
      few_keys = sizes[0];
    } else if (word == "--heads" && i + 1 < argc) {
      head_counts = {std::atoll(argv[++i])};
    } else if (word == "--rows" && i + 1 < argc) {
      row_counts = {std::atoll(argv[++i])};
    } else if (word == "--trace" && i + 1 < argc) {
      traces.emplace_back(argv[++i]);
    } else if (word == "--few") {
      cuda::tuning().few = 1;
    } else if (word == "--short") {
      sizes = {131072, 1048576};
    } else {
      cases.push_back(word);
    }
  }
  const auto wanted = [&](const char* name) {
    return cases.empty() || std::find(cases.begin(), cases.end(), name) != cases.end();
  };
  if (wanted("prefill"))
    for (const std::int64_t heads : head_counts)
      for (const std::int64_t keys : sizes) {
        const Data data = make(16384, keys, heads);
        if (wanted("check") && keys == sizes[0]) check_rows(data.problem, 2048);
        time_call("prefill", data.problem, 2048, seconds);
      }
  if (wanted("few"))
    for (const std::int64_t rows : row_counts) {
      const Data data = make(rows, few_keys, 32);
      if (wanted("check")) check_rows(data.problem, 2048);
      time_few("few", data.problem, 2048, std::min(seconds, 0.5));
    }
  if (wanted("launches")) time_launches(head_counts, std::min(seconds, 0.3));
  for (const std::string& file : traces) {
    const Trace trace = Trace::open(file);
    const Data data = aligned(trace.problem());
    if (wanted("check")) check_rows(data.problem, 2048);
    time_call(file.substr(file.rfind('/') + 1), data.problem, 2048, seconds);
  }
  if (wanted("decode")) time_decode(32, 65536, std::min(seconds, 0.3));
  if (wanted("pairs"))
    for (const std::int64_t heads : head_counts) time_pairs(make(16384, sizes.back(), heads), 2048, seconds);
  if (wanted("hard")) time_hard(std::min(seconds, 0.3));
  if (!json.empty()) write_json(json, commit);
  return 0;
}

}  // namespace
}  // namespace dosa::tools

int main(int argc, char** argv) {
  try {
    return dosa::tools::main_timed(argc, argv);
  } catch (const std::exception& error) {
    dosa::text::print(stdout, "device_bench: {}\n", error.what());
    return 2;
  }
}
