// The named inputs at full size, sizes around powers of two, and score matrices of more than 2^31 elements. The device
// computes every row; the CPU as many of them, spread over the call, as it does in a few seconds.
#include <limits>

#include "device_check.hpp"

namespace dosa::tools {
namespace {

using workloads::Random;

/// Rows first, first + step, ... of a problem.
struct Rows {
  Problem problem;
  std::vector<std::int32_t> requests;
};
void some_rows(Rows& out, const Problem& whole, std::int64_t count, std::int64_t step) {
  const Shape shape = shape_of(whole);
  Problem& part = out.problem = whole;
  if (shape.paged) {
    out.requests.clear();
    for (std::int64_t i = 0; i < count; ++i)
      out.requests.push_back(whole.row_request.absent()
                                 ? static_cast<std::int32_t>(i * step / (shape.rows / shape.requests))
                                 : *whole.row_request.at(i * step));
    part.row_request = TensorView<const std::int32_t, 1>::contiguous(out.requests.data(), {count});
  }
  const auto thin = [&](auto& view) { view.shape[0] = count, view.strides[0] *= step; };
  thin(part.q), thin(part.weights), thin(part.ks), thin(part.ke);
}

OwnedSelection rows_of(const OwnedSelection& whole, std::int64_t count, std::int64_t step) {
  OwnedSelection part;
  part.rows = count, part.top_k = whole.top_k;
  const auto width = static_cast<std::size_t>(whole.top_k);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto t = static_cast<std::size_t>(i * step);
    part.lengths.push_back(whole.lengths[t]);
    for (std::size_t slot = 0; slot < width; ++slot) {
      part.indices.push_back(whole.indices[t * width + slot]);
      if (!whole.scores.empty()) part.scores.push_back(whole.scores[t * width + slot]);
    }
  }
  return part;
}

template <class Call>
double seconds_of(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_rows(Tally& tally, const Problem& problem, const Options& options, const std::string& what,
                double cpu_seconds) {
  const std::int64_t rows = shape_of(problem).rows;
  const OwnedSelection found = on(problem, options, Backend::cuda);
  Rows some;
  some_rows(some, problem, 1, 1);
  const double one = seconds_of([&] {
    tally.expect(what + " row 0", difference(on(some.problem, options, Backend::cpu), rows_of(found, 1, 1)));
  });
  const auto affordable = static_cast<std::int64_t>(cpu_seconds / std::max(one, 1e-6));
  const std::int64_t step =
      affordable >= rows ? 1
                         : (rows + std::max<std::int64_t>(affordable, 1) - 1) / std::max<std::int64_t>(affordable, 1);
  const std::int64_t count = (rows + step - 1) / step;
  some_rows(some, problem, count, step);
  tally.expect(what, difference(on(some.problem, options, Backend::cpu), rows_of(found, count, step)));
  text::print(stdout, "  {}: {} of {} rows compared (the CPU takes {:.3f} s a row)\n", what, count, rows, one);
  std::fflush(stdout);
}

/// Q x N past 2^31: the whole matrix is written on the device, some rows are read back.
void check_matrix(Tally& tally) {
  const workloads::Workload made =
      workloads::mix({.rows = 2700, .keys = 806736, .heads = 4, .head_dim = 32, .top_k = 1, .seed = 9}, {});
  const Shape shape = shape_of(made.problem);
  cuda::Staging staging({DeviceKind::cuda, 0});
  const Problem problem = staging.upload(made.problem);
  auto* const memory = static_cast<float*>(staging.allocate(static_cast<std::size_t>(shape.rows * shape.keys) * 4));
  Options options;
  options.backend = Backend::cuda;
  options.model = ScoreModel::sm90;
  scores(problem, options, TensorView<float, 2>::contiguous(memory, {shape.rows, shape.keys}, {DeviceKind::cuda, 0}));
  Rows some;
  constexpr std::int64_t kStep = 899;
  const std::int64_t count = (shape.rows + kStep - 1) / kStep;
  some_rows(some, made.problem, count, kStep);
  const std::vector<float> wanted = scores_by_cpu(some.problem);
  std::vector<float> found(static_cast<std::size_t>(shape.keys));
  for (std::int64_t i = 0; i < count; ++i) {
    cuda::check(cudaMemcpy(found.data(), memory + i * kStep * shape.keys, found.size() * 4, cudaMemcpyDeviceToHost),
                "row");
    std::size_t differ = 0;
    for (std::size_t key = 0; key < found.size(); ++key)
      differ += std::bit_cast<std::uint32_t>(found[key]) !=
                        std::bit_cast<std::uint32_t>(wanted[static_cast<std::size_t>(i * shape.keys) + key])
                    ? 1U
                    : 0U;
    tally.expect(text::format("matrix of {} x {}, row {}", shape.rows, shape.keys, i * kStep),
                 differ == 0 ? "" : text::format("{} scores", differ));
  }
}

}  // namespace

void check_full(Tally& tally, bool quick) {
  const double cpu_seconds = quick ? 0.2 : 2;  // an input
  Random random(83);
  check_matrix(tally);
  for (const std::int64_t keys : {65535, 65537, 806736, 1048575, 1048577})
    for (const int heads : {32, 64}) {
      const workloads::Workload made =
          workloads::mix({.rows = 3, .keys = keys, .heads = heads, .head_dim = 128, .top_k = 2048, .seed = 7}, {});
      Options options;
      options.top_k = 2048;
      options.scores = true;
      check_rows(tally, made.problem, options, text::format("full: Q 3 N {} H {}", keys, heads), cpu_seconds);
    }
  for (const workloads::Entry& entry : workloads::registry()) {
    const workloads::Workload made = workloads::make(entry, entry.full);
    const bool paged = std::holds_alternative<PagedKeys>(made.problem.keys);
    Options options;
    options.top_k = std::clamp<std::int64_t>(made.top_k, 1, cuda::kMaxTopK);
    options.scores = true;
    const Shape shape = shape_of(made.problem);
    const std::string what = text::format("full {}: Q {} N {} H {} D {} K {}", entry.name, shape.rows, shape.keys,
                                          shape.heads, shape.head_dim, options.top_k);
    check_rows(tally, made.problem, options, what, cpu_seconds);
    if (random.chance(0.3))
      check_rows(tally, made.problem, drawn_options(random, options.top_k, paged), what + " drawn", cpu_seconds);
  }
}

}  // namespace dosa::tools
