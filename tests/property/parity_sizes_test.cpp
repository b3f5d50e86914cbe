// The frontier of sizes: around tiles, pages and powers of two, every base address, and offsets beyond 2^31.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/parity.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed + test_seed()), isas_(runnable_isas()) {}

  Options next(std::int64_t top_k) {
    constexpr Path paths[] = {Path::automatic, Path::dense, Path::dosa};
    constexpr int threads[] = {1, 2, 7};
    Options options = top(top_k, random_.chance(0.1) ? Backend::reference : Backend::cpu);
    options.isa = isas_[static_cast<std::size_t>(turn_ % isas_.size())];
    options.path = paths[turn_ / isas_.size() % 3];
    options.model = random_.chance(0.5) ? ScoreModel::f64 : ScoreModel::sm90;
    options.threads = threads[random_.below(3)];
    options.order = random_.chance(0.5) ? Order::index : Order::score;
    options.scores = random_.chance(0.5);
    ++turn_;
    return options;
  }

 private:
  workloads::Random random_;
  std::vector<Isa> isas_;
  std::size_t turn_ = 0;
};

TEST(Sizes, KeysAndTopKAroundEachOther) {
  Draws draws(31);
  std::vector<std::int64_t> lengths{1, 2, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 65535, 65536, 65537};
  if (full_sizes()) lengths.insert(lengths.end(), {(1 << 20) - 1, 1 << 20, (1 << 20) + 1});
  for (const std::int64_t keys : lengths) {
    const auto workload = workloads::make(workloads::find("indexer_like"), {2, keys, 3, 32, 1, 7});
    Parity parity(workload.problem, 1, "keys " + std::to_string(keys));
    for (const std::int64_t top_k :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{512}, std::int64_t{1024}, std::int64_t{2047},
          std::int64_t{2048}, std::int64_t{2049}, std::int64_t{4096}, keys - 1, keys, keys + 1}) {
      if (top_k >= 1) parity.run_exactly(draws.next(top_k));
    }
  }
}

TEST(Sizes, EveryHeadCountAndDimension) {
  Draws draws(32);
  for (const std::int32_t heads : {1, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128}) {
    for (const std::int32_t dim : {32, 64, 96, 128, 192, 256}) {
      const auto workload = workloads::make(workloads::find("indexer_like"), {2, 150, heads, dim, 20, 7});
      Parity parity(workload.problem, 20, "heads " + std::to_string(heads) + " dim " + std::to_string(dim));
      for (int round = 0; round < 4; ++round) parity.run_exactly(draws.next(20));
    }
  }
}

TEST(Sizes, EveryBaseAddress) {
  for (const char* name : {"indexer_like", "paged_4"}) {
    const auto workload = workloads::make(workloads::find(name), {3, 333, 5, 64, 30, 7});
    for (std::size_t offset = 0; offset < 16; ++offset) {
      for (const auto side : {GuardedBuffer::Side::begin, GuardedBuffer::Side::end}) {
        const GuardedProblem guarded(workload.problem, side, offset);
        Parity parity(guarded.problem(), 30, std::string(name) + " offset " + std::to_string(offset));
        for (const Isa isa : runnable_isas()) {
          for (const Path path : {Path::dense, Path::dosa}) {
            Options options = top(30, Backend::cpu);
            options.isa = isa;
            options.path = path;
            options.model = offset % 2 == 0 ? ScoreModel::f64 : ScoreModel::sm90;
            parity.run_exactly(options, {side, offset, 0xcd, 1, nullptr});
          }
        }
        EXPECT_EQ(guarded.damage(), std::nullopt);
      }
    }
  }
}

/// Rows of every tensor, and of the outputs, lie more than 2^31 bytes apart.
TEST(Sizes, OffsetsBeyond2To31) {
  constexpr std::int64_t rows = 3, heads = 4, dim = 32, top_k = 9, step = (std::int64_t{1} << 31) + 4096;
  const auto small = workloads::make(workloads::find("codes_normal"), {rows, 200, heads, dim, top_k, 7});
  workloads::Workload far;  // owns the address space
  const auto space = [&](std::int64_t bytes) { return workloads::keep_sparse(far, static_cast<std::size_t>(bytes)); };
  Problem problem = small.problem;
  auto* q = reinterpret_cast<std::uint8_t*>(space(rows * step));
  auto* weights = reinterpret_cast<float*>(space(rows * step));
  auto* ks = reinterpret_cast<std::int32_t*>(space(rows * step));
  auto* ke = reinterpret_cast<std::int32_t*>(space(rows * step));
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(q + t * step + h * 4096, small.problem.q.at(t, h), dim);
      weights[t * (step / 4) + h] = *small.problem.weights.at(t, h);
    }
    ks[t * (step / 4)] = *small.problem.ks.at(t);
    ke[t * (step / 4)] = *small.problem.ke.at(t);
  }
  problem.q = {q, {rows, heads, dim}, {step, 4096, 1}, {}};
  problem.weights = {weights, {rows, heads}, {step / 4, 1}, {}};
  problem.ks = {ks, {rows}, {step / 4}, {}};
  problem.ke = {ke, {rows}, {step / 4}, {}};
  Selection selection;
  selection.indices = {reinterpret_cast<std::int32_t*>(space(rows * step)), {rows, top_k}, {step / 4, 1}, {}};
  selection.lengths = {reinterpret_cast<std::int32_t*>(space(rows * step)), {rows}, {step / 4}, {}};
  selection.scores = {reinterpret_cast<float*>(space(rows * step)), {rows, top_k}, {step / 4, 1}, {}};
  Draws draws(33);
  for (int round = 0; round < 16; ++round) {
    Options options = draws.next(top_k);
    options.scores = true;
    const Plan decided = plan(shape_of(problem), options);
    std::vector<std::byte> workspace(decided.workspace_bytes());
    run(decided, problem, selection, workspace);
    Result found{rows, top_k, {}, {}, {}};
    for (std::int64_t t = 0; t < rows; ++t) {
      found.lengths.push_back(*selection.lengths.at(t));
      for (std::int64_t j = 0; j < top_k; ++j) {
        found.indices.push_back(*selection.indices.at(t, j));
        found.scores.push_back(*selection.scores.at(t, j));
      }
    }
    EXPECT_EQ(difference(expected(small.problem, options), found), std::nullopt) << describe(options);
  }
}

}  // namespace
}  // namespace dosa::test
