// The smallest program that uses an installed dosa: one query, one head, four keys, two of which tie.
#include <cstdint>
#include <cstdio>
#include <dosa/dosa.hpp>
#include <vector>

int main() {
  const std::vector<std::uint8_t> query(32, 0x38), keys(4 * 32, 0x38);  // E4M3 code 0x38 is 1.0
  const std::vector<float> scales{1, 3, 2, 3}, weights{0.5F};
  const std::vector<std::int32_t> ks{0}, ke{4};

  dosa::Problem problem;
  problem.q = {query.data(), {1, 1, 32}, {32, 32, 1}};
  problem.weights = {weights.data(), {1, 1}, {1, 1}};
  problem.keys = dosa::ContiguousKeys{{keys.data(), {4, 32}, {32, 1}}, {scales.data(), {4}, {1}}};
  problem.ks = {ks.data(), {1}, {1}};
  problem.ke = {ke.data(), {1}, {1}};

  dosa::Options options;
  options.top_k = 3;
  options.order = dosa::Order::score;
  options.scores = true;
  const dosa::OwnedSelection found = dosa::select(problem, options);
  for (std::size_t i = 0; i < found.indices.size(); ++i) std::printf("%d:%g ", found.indices[i], found.scores[i]);
  try {
    options.top_k = 0;
    static_cast<void>(dosa::select(problem, options));
  } catch (const dosa::Error& error) {  // thrown by the library, caught outside
    std::puts(error.kind() == dosa::ErrorKind::usage ? "usage" : error.what());
  }
}
