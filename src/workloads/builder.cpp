#include "workloads/builder.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <new>

namespace dosa::workloads {

std::uint8_t e4m3_nearest(double value) noexcept {
  if (std::isnan(value)) return kNaNCode;
  const std::uint8_t sign = std::signbit(value) ? kSign : 0;
  const double magnitude = std::min(std::abs(value), 448.0);
  if (magnitude < 0x1p-10) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -6);
  // Significand in units of 2^(exponent - 3): 0..16, where 16 carries into the next binade as the encoding itself does.
  const double units = std::ldexp(magnitude, 3 - exponent);
  const double down = std::floor(units);
  const double rest = units - down;
  auto significand = static_cast<int>(down);
  if (rest > 0.5 || (rest == 0.5 && significand % 2 != 0)) ++significand;
  return static_cast<std::uint8_t>(sign | std::min((exponent + 6) * 8 + significand, 0x7e));
}

std::uint8_t finite_code(Random& random) noexcept {
  const auto code = static_cast<std::uint8_t>(random.below(254));
  return code < 0x7f ? code : static_cast<std::uint8_t>(code + 1);
}

float float_of_bits(std::uint32_t bits) noexcept { return std::bit_cast<float>(bits); }

Builder::Builder(const Size& wanted_size) : size(wanted_size), random(wanted_size.seed * 0x2545f4914f6cdd1dULL + 99) {
  const auto rows = static_cast<std::size_t>(size.rows), keys = static_cast<std::size_t>(size.keys);
  const auto heads = static_cast<std::size_t>(size.heads), dim = static_cast<std::size_t>(size.head_dim);
  q.resize(rows * heads * dim);
  k.resize(keys * dim);
  scale.assign(keys, 1.0F);
  weights.resize(rows * heads);
  ks.resize(rows);
  ke.assign(rows, static_cast<std::int32_t>(size.keys));
}

void Builder::vary_windows() {
  for (std::int64_t t = 2; t < size.rows; ++t) {
    const std::int64_t half = size.keys / 2;
    const auto row = static_cast<std::size_t>(t);
    ks[row] = static_cast<std::int32_t>(t % 2 == 0 ? 0 : random.below(half + 1));
    ke[row] = static_cast<std::int32_t>(half + random.below(size.keys - half) + 1);
  }
}

void Builder::causal_windows() {
  for (std::int64_t t = 0; t < size.rows; ++t) {
    ke[static_cast<std::size_t>(t)] =
        static_cast<std::int32_t>(std::max<std::int64_t>(size.keys - (size.rows - 1 - t), 1));
  }
}

void Builder::control(std::span<const float> wanted, bool many_heads) {
  const auto heads = static_cast<std::int64_t>(size.heads);
  const auto active = static_cast<std::int64_t>(many_heads ? std::bit_floor(static_cast<std::uint32_t>(heads)) : 1U);
  const std::int64_t first = many_heads ? 0 : heads / 2;
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::uint8_t* code = query(t, h);
      if (h >= first && h < first + active) {
        std::fill_n(code, size.head_dim, std::uint8_t{0});
        code[0] = kOne;
        weight(t, h) = 1.0F / static_cast<float>(active);
      } else {
        // Weight 0: whatever the head sees, it adds a zero.
        for (int d = 0; d < size.head_dim; ++d) code[d] = finite_code(random);
        weight(t, h) = 0.0F;
      }
    }
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const float value = wanted[static_cast<std::size_t>(i)];
    std::uint8_t* code = key(i);
    for (int d = 1; d < size.head_dim; ++d) code[d] = finite_code(random);
    // An infinite scale times the zero heads would be NaN under sm90, so infinity comes from a product that overflows.
    code[0] = std::isinf(value) ? kLargest : kOne;
    scale[static_cast<std::size_t>(i)] =
        std::isinf(value) ? std::copysign(std::numeric_limits<float>::max(), value) : value;
  }
  known_scores.assign(wanted.begin(), wanted.end());
}

Workload Builder::finish() {
  Workload workload;
  workload.top_k = size.top_k;
  workload.known_scores = std::move(known_scores);
  Problem& problem = workload.problem;
  const std::int64_t rows = size.rows, keys = size.keys, heads = size.heads, dim = size.head_dim;
  problem.q = TensorView<const std::uint8_t, 3>::contiguous(keep(workload, std::move(q)), {rows, heads, dim});
  problem.weights = TensorView<const float, 2>::contiguous(keep(workload, std::move(weights)), {rows, heads});
  ContiguousKeys contiguous;
  contiguous.codes = TensorView<const std::uint8_t, 2>::contiguous(keep(workload, std::move(k)), {keys, dim});
  contiguous.scales = TensorView<const float, 1>::contiguous(keep(workload, std::move(scale)), {keys});
  problem.keys = contiguous;
  problem.ks = TensorView<const std::int32_t, 1>::contiguous(keep(workload, std::move(ks)), {rows});
  problem.ke = TensorView<const std::int32_t, 1>::contiguous(keep(workload, std::move(ke)), {rows});
  return workload;
}

std::byte* keep_sparse(Workload& workload, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  workload.owners.emplace_back(memory, [bytes](const void* p) { munmap(const_cast<void*>(p), bytes); });
  return static_cast<std::byte*>(memory);
}

}  // namespace dosa::workloads
