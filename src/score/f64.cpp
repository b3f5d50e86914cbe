// Score model `f64`: exact dots, binary64 fma chain over the heads in order, one rounding to binary32.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "score/e4m3.hpp"
#include "score/score.hpp"

namespace dosa {
namespace {

bool any_nan(const std::uint8_t* codes, int count) noexcept {
  bool nan = false;
  for (int d = 0; d < count; ++d) nan |= e4m3_is_nan(codes[d]);
  return nan;
}

}  // namespace

float score_f64(const ScoreRow& row, const std::uint8_t* key, float key_scale) noexcept {
  constexpr int kMaxDim = 256;
  std::int64_t units[kMaxDim];  // key values in units of 2^-9
  for (int d = 0; d < row.head_dim; ++d) units[d] = e4m3_unit_values[key[d]];
  const bool nan_key = any_nan(key, row.head_dim);

  double acc = 0.0;
  for (int h = 0; h < row.heads; ++h) {
    const std::uint8_t* q = row.q + h * row.head_stride;
    // Units of 2^-18. |dot| <= 256 * 448^2 * 2^18 < 2^44: exact in int64 and in binary64.
    std::int64_t dot = 0;
    bool nan = nan_key;
    for (int d = 0; d < row.head_dim; ++d) {
      dot += units[d] * e4m3_unit_values[q[d]];
      nan |= e4m3_is_nan(q[d]);
    }
    const double relu = nan       ? std::numeric_limits<double>::quiet_NaN()
                        : dot > 0 ? static_cast<double>(dot) * 0x1p-18
                                  : 0.0;
    acc = std::fma(static_cast<double>(row.weights[h * row.weight_stride]), relu, acc);
  }
  const double scaled = static_cast<double>(key_scale) * acc;
  return std::isnan(scaled) ? std::bit_cast<float>(0x7fffffffU) : static_cast<float>(scaled);
}

}  // namespace dosa
