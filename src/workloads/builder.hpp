// What the families share: memory, codes, windows, and scores that come out bit for bit as wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "workloads/random.hpp"
#include "workloads/workloads.hpp"

namespace dosa::workloads {

inline constexpr std::uint8_t kOne = 0x38;  ///< 1.0
inline constexpr std::uint8_t kMinusOne = 0xb8;
inline constexpr std::uint8_t kLargest = 0x7e;  ///< 448
inline constexpr std::uint8_t kNaNCode = 0x7f;
inline constexpr std::uint8_t kSign = 0x80;

/// Nearest E4M3 code, ties to even, saturating; NaN becomes 0x7f.
[[nodiscard]] std::uint8_t e4m3_nearest(double value) noexcept;
/// A random finite code, uniform over all 254.
[[nodiscard]] std::uint8_t finite_code(Random& random) noexcept;
[[nodiscard]] float float_of_bits(std::uint32_t bits) noexcept;

/// Plain arrays of one contiguous problem, to be filled and then finished into a workload.
struct Builder {
  explicit Builder(const Size& wanted_size);

  Size size;
  Random random;
  std::vector<std::uint8_t> q, k;    ///< zeros
  std::vector<float> scale;          ///< ones
  std::vector<float> weights;        ///< zeros
  std::vector<std::int32_t> ks, ke;  ///< everything visible

  [[nodiscard]] std::uint8_t* query(std::int64_t row, std::int64_t head) {
    return q.data() + (row * size.heads + head) * size.head_dim;
  }
  [[nodiscard]] std::uint8_t* key(std::int64_t i) { return k.data() + i * size.head_dim; }
  [[nodiscard]] float& weight(std::int64_t row, std::int64_t head) {
    return weights[static_cast<std::size_t>(row * size.heads + head)];
  }

  /// Rows 0 and 1 see everything; later rows see windows that start and end anywhere, half of them from key 0.
  void vary_windows();
  /// Row t sees the last keys as a causal prefill does: ke = N - (Q - 1 - t).
  void causal_windows();

  /// Makes every row score key i as wanted[i], under both models, bit for bit: the scale carries the value, dots are 1.
  /// many_heads: the value comes as a sum over a power of two of heads (exact for normal wanted values only).
  void control(std::span<const float> wanted, bool many_heads);

  [[nodiscard]] Workload finish();

  std::vector<float> known_scores;
};

/// Moves a vector into shared ownership and returns its data.
template <class T>
T* keep(Workload& workload, std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  T* data = owner->data();
  workload.owners.push_back(std::move(owner));
  return data;
}

/// Zeroed address space that takes memory only where it is written: caches beyond 2^31 bytes in a small test.
[[nodiscard]] std::byte* keep_sparse(Workload& workload, std::size_t bytes);

void append_score_entries(std::vector<Entry>& entries);
void append_layout_entries(std::vector<Entry>& entries);
void append_value_entries(std::vector<Entry>& entries);
void append_certificate_entries(std::vector<Entry>& entries);

}  // namespace dosa::workloads
