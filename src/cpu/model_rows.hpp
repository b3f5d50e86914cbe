// One row, laid out for the bulk model scorers: lanes are heads, so a key needs no transposition and keys may lie
// anywhere. The functions are compiled for the baseline (the files of wider instruction sets must not emit code others
// could link to).
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/key_source.hpp"
#include "dosa/types.hpp"
#include "score/score.hpp"

namespace dosa::cpu {

inline constexpr int kKeyBlock = 64;  ///< keys whose addresses are resolved, and whose codes are prefetched, at a time
inline constexpr int kMaxHeads = 128;
inline constexpr int kMaxDim = 256;

/// How an instruction set wants its rows. Heads are padded to whole vectors of `lanes`; vectors form groups of the
/// largest size in {max_vectors, .., 4, 2, 1} that still fits what is left, and a group is contiguous in memory.
struct RowLayout {
  int lanes;
  int max_vectors;
  bool split;  ///< sm90 only: values as [2][lanes], nonnegative part and nonpositive part
};

struct F64Row {
  const double* q;        ///< groups of [D][vectors][lanes]: value * 2^8 (keys are used as value * 2^-8)
  const double* weights;  ///< [H]
  bool nan;               ///< a NaN code in q: every score is NaN
};

/// Heads with a NaN code are all zero codes here: the served relu makes +0 of either.
struct Sm90Row {
  const float* values;            ///< groups of [D][vectors][lanes] or [D][vectors][2][lanes]: value * 2^8
  const std::uint8_t* exponents;  ///< groups of [D][vectors][lanes]: kExponentBias + e, 0 for a zero code
  const float* weights;           ///< [H rounded up to 8], padding -0
};

/// Sums of two biased exponents: 2 bias - 12 and more for nonzero products, at most bias + 8 where a factor is zero.
inline constexpr int kExponentBias = 64;
inline constexpr int kNoProduct = kExponentBias + 8;

/// Writes heads first_head .. first_head + width - 1 (zeros where there are none) as [D][width] for F64Row::q. Codes
/// that are NaN give any number.
using FillGroup = void (*)(const ScoreRow& row, int first_head, int width, double* out);

[[nodiscard]] std::size_t row_bytes(ScoreModel model, const RowLayout& layout, int heads, int head_dim) noexcept;
/// `fill`: an instruction set's own loop for the f64 values, or null.
void fill_row(ScoreModel model, const RowLayout& layout, const ScoreRow& row, std::byte* memory,
              FillGroup fill = nullptr) noexcept;
[[nodiscard]] F64Row f64_row(const RowLayout& layout, int heads, int head_dim, const std::byte* memory) noexcept;
[[nodiscard]] Sm90Row sm90_row(const RowLayout& layout, int heads, int head_dim, const std::byte* memory) noexcept;

/// Addresses of keys index[0..count-1], or first.. where index is null; count <= kKeyBlock. Keys on invalid physical
/// pages are left out: returns how many are left, and the place of each in the block. Starts fetching their bytes.
int locate_block(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, KeyAddress* addresses,
                 int* places) noexcept;

}  // namespace dosa::cpu
