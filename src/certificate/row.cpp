#include "certificate/row.hpp"

#include <cmath>

#include "certificate/outward.hpp"
#include "score/e4m3.hpp"

namespace dosa::certificate {

void read_row(const ScoreRow& row, ScoreModel model, float* values, RowFacts& facts) noexcept {
  facts.heads = row.heads;
  facts.dim = row.head_dim;
  facts.finite = true;
  for (int h = 0; h < row.heads; ++h) {
    const std::uint8_t* codes = row.q + h * row.head_stride;
    float* out = values + static_cast<std::ptrdiff_t>(h) * row.head_dim;
    bool nan = false;
    std::int64_t absolute = 0;
    for (int d = 0; d < row.head_dim; ++d) {
      const std::int32_t units = e4m3_unit_values[codes[d]];
      out[d] = static_cast<float>(units) * 0x1p-9F;
      absolute += units < 0 ? -units : units;
      nan |= e4m3_is_nan(codes[d]);
    }
    const float weight = row.weights[h * row.weight_stride];
    if (!std::isfinite(weight) || (nan && model == ScoreModel::f64)) facts.finite = false;
    const bool silent = nan || absolute == 0 || weight == 0;
    if (silent) {
      for (int d = 0; d < row.head_dim; ++d) out[d] = 0;
    }
    facts.weight[h] = silent ? 0.0 : static_cast<double>(weight);
    facts.absolute[h] = silent ? 0.0 : static_cast<double>(absolute) * 0x1p-9;
    facts.norm[h] = silent ? 0.0 : std::sqrt(exact_dot(out, out, row.head_dim)) * kInflate;
  }
}

double exact_dot(const float* a, const float* b, int dim) noexcept {
  double part[4] = {};
  for (int d = 0; d < dim; d += 4) {
    for (int l = 0; l < 4; ++l) part[l] += static_cast<double>(a[d + l]) * static_cast<double>(b[d + l]);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

}  // namespace dosa::certificate
