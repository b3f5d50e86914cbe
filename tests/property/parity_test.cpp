// Every named input, on every backend, instruction set, path and model, equals the oracle byte for byte.
#include "support/parity.hpp"

#include <gtest/gtest.h>

#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

class Parities : public testing::TestWithParam<const workloads::Entry*> {};

std::uint64_t seed_of(std::string_view name) {  // FNV-1a: the same draws on every machine
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ test_seed();
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

TEST_P(Parities, EveryRunEqualsTheOracle) {
  const workloads::Entry& entry = *GetParam();
  workloads::Random random(seed_of(entry.name));
  const workloads::Size size = full_sizes() ? entry.full : entry.small;
  const workloads::Workload workload = workloads::make(entry, size);
  Parity parity(workload.problem, workload.top_k, std::string(entry.name));
  parity.run_all(random, full_sizes() || slow_build() ? 1 : 2);
}

/// Other heads, dimensions, lengths and K than the named size: what does not divide a tile, a panel or a vector.
TEST_P(Parities, OddSizesEqualTheOracle) {
  const workloads::Entry& entry = *GetParam();
  workloads::Random random(seed_of(entry.name) + 1);
  constexpr std::int32_t heads[] = {1, 2, 3, 4, 8, 15, 16, 17, 24, 32, 33, 40, 48, 63, 64, 96, 127, 128};
  constexpr std::int32_t dims[] = {32, 64, 96, 128, 160, 192, 224, 256};
  constexpr std::int64_t keys[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257, 511, 513};
  const int rounds = full_sizes() ? 60 : slow_build() ? 1 : 3;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    workloads::Size size;
    size.rows = random.below(10) + 1;
    size.heads = heads[random.below(18)];
    size.head_dim = dims[random.below(8)];
    size.keys = keys[random.below(18)];
    size.top_k = random.chance(0.5) ? random.below(size.keys) + 1 : random.below(40) + 1;
    size.seed = random.bits();
    const workloads::Workload workload = workloads::make(entry, size);
    Parity parity(workload.problem, workload.top_k, std::string(entry.name) + " odd");
    parity.run_all(random);
  }
}

std::vector<const workloads::Entry*> all_entries() {
  std::vector<const workloads::Entry*> entries;
  for (const workloads::Entry& entry : workloads::registry()) entries.push_back(&entry);
  return entries;
}

INSTANTIATE_TEST_SUITE_P(Inputs, Parities, testing::ValuesIn(all_entries()),
                         [](const auto& parameters) { return std::string(parameters.param->name); });

}  // namespace
}  // namespace dosa::test
