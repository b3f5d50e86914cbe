// Real traces, and the recorded calls of the real kernel: the selection from the recorded bits is ours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dosa/trace.hpp"
#include "golden/vector_file.hpp"
#include "support/parity.hpp"
#include "support/shared_data.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

void check_trace(const std::filesystem::path& file) {
  const Trace trace = Trace::open(file);
  const std::int64_t rows = trace.problem().q.shape[0];
  // The ends of the trace; the nightly run takes many rows, so that earlier winners are later rows' seeds.
  std::vector<std::int64_t> chosen{rows - 1};
  if (!slow_build()) chosen.insert(chosen.begin(), 0);
  if (full_sizes())
    for (std::int64_t t = 0; t < rows; t += 7) chosen.push_back(t);
  const Trace few = trace.rows(chosen);
  Parity parity(few.problem(), std::min<std::int64_t>(2048, keys_of(trace.problem()) / 4), file.stem().string());
  workloads::Random random(13);
  Options options = top(std::min<std::int64_t>(2048, keys_of(trace.problem()) / 4), Backend::reference);
  options.scores = true;
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    options.model = model;
    options.backend = Backend::reference;
    parity.run_exactly(options);
    options.backend = Backend::cpu;
    for (const Isa isa : runnable_isas()) {
      for (const Path path : {Path::automatic, Path::dense, Path::dosa}) {
        options.isa = isa;
        options.path = path;
        parity.run_exactly(options);
      }
    }
  }
  if (full_sizes() || keys_of(trace.problem()) <= 8192) parity.run_all(random);
}

class Traces : public testing::TestWithParam<const char*> {};

TEST_P(Traces, EveryRunEqualsTheOracle) {
  DOSA_SHARED_FOLDER(folder, "traces");
  check_trace(folder / (std::string(GetParam()) + ".safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Files, Traces,
                         testing::Values("tiny_en_l03_h32", "en_l00_h32", "en_l03_h32", "en_l03_h64", "en_l06_h32",
                                         "code_l09_h32_ue8m0"),
                         [](const auto& parameters) { return std::string(parameters.param); });

/// The oracle here is the kernel's own logits, not our model of them.
TEST(Vectors, SelectionFromTheRecordedBits) {
  DOSA_SHARED_FOLDER(folder, "vectors");
  int calls = 0;
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) files.push_back(file.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    if (path.extension() != ".safetensors") continue;
    const VectorFile file(path);
    if (!file.has("logits")) continue;
    ++calls;
    const Trace trace = Trace::open(path);
    const Problem& problem = trace.problem();
    const std::int64_t rows = problem.q.shape[0], keys = keys_of(problem);
    const std::vector<float> logits = file.read<float>("logits", "F32");
    // Files take turns: a K that cuts, and one that takes all.
    for (const std::int64_t top_k : {calls % 3 == 0 ? keys : keys / 8 + 1}) {
      Result wanted{rows, top_k, {}, {}, {}};
      for (std::int64_t t = 0; t < rows; ++t) {
        std::vector<std::pair<float, std::int32_t>> order;
        for (std::int64_t i = *problem.ks.at(t); i < *problem.ke.at(t); ++i) {
          const float score = logits[static_cast<std::size_t>(t * keys + i)];
          if (!std::isnan(score)) order.emplace_back(score, static_cast<std::int32_t>(i));
        }
        std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        if (static_cast<std::int64_t>(order.size()) > top_k) order.resize(static_cast<std::size_t>(top_k));
        wanted.lengths.push_back(static_cast<std::int32_t>(order.size()));
        order.resize(static_cast<std::size_t>(top_k), {-std::numeric_limits<float>::infinity(), -1});
        for (const auto& [score, index] : order) {
          wanted.scores.push_back(score);
          wanted.indices.push_back(index);
        }
      }
      Options options = top(top_k, Backend::reference);
      options.model = ScoreModel::sm90;
      options.order = Order::score;
      options.scores = true;
      const auto check = [&] {
        const Result found = run_guarded(problem, options, path.stem().string());
        EXPECT_EQ(difference(wanted, found), std::nullopt) << path.stem() << " " << describe(options);
      };
      check();
      options.backend = Backend::cpu;
      for (const Isa isa : runnable_isas()) {
        for (const Path way : {Path::automatic, Path::dense, Path::dosa}) {
          options.isa = isa;
          options.path = way;
          check();
        }
      }
    }
  }
  EXPECT_GT(calls, 40);
}

}  // namespace
}  // namespace dosa::test
