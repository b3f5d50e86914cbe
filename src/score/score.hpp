// Score models: the F32 bits of one (row, key) pair. Scalar, obvious, the oracle of everything faster.
#pragma once

#include <cstdint>

#include "dosa/types.hpp"

namespace dosa {

/// One row's side of a score: q codes [H,D] with strides, weights [H].
struct ScoreRow {
  const std::uint8_t* q;
  std::int64_t head_stride;  ///< codes from head to head (may be 0: a broadcast)
  const float* weights;
  std::int64_t weight_stride;
  std::int32_t heads, head_dim;
};

/// binary64 chain over exact dots (docs/contract.md, "f64"). NaN comes out as 0x7fffffff.
[[nodiscard]] float score_f64(const ScoreRow& row, const std::uint8_t* key, float key_scale) noexcept;

/// The served bits on Hopper (docs/sm90.md). NaN comes out as 0x7fffffff.
[[nodiscard]] float score_sm90(const ScoreRow& row, const std::uint8_t* key, float key_scale) noexcept;

/// One wgmma k-step: adds 32 products of E4M3 codes to the F32 accumulator c by the integer rule of docs/sm90.md.
/// a, b: 32 codes each. c finite, as every accumulator of a chain is; NaN in a, b or c gives 0x7fffffff (so does an
/// infinite c).
[[nodiscard]] float sm90_accumulate(const std::uint8_t* a, const std::uint8_t* b, float c) noexcept;

[[nodiscard]] inline float score(ScoreModel model, const ScoreRow& row, const std::uint8_t* key,
                                 float key_scale) noexcept {
  return model == ScoreModel::f64 ? score_f64(row, key, key_scale) : score_sm90(row, key, key_scale);
}

/// Value of an E4M3 code in units of 2^-9 (exact integer, |v| <= 229376); NaN codes (0x7f, 0xff) are the caller's
/// business.
[[nodiscard]] std::int32_t e4m3_units(std::uint8_t code) noexcept;
[[nodiscard]] constexpr bool e4m3_is_nan(std::uint8_t code) noexcept { return (code & 0x7fU) == 0x7fU; }

}  // namespace dosa
