#include "certificate/row.hpp"

#include <algorithm>
#include <cmath>

#include "certificate/outward.hpp"

namespace dosa::certificate {

void read_row(const ScoreRow& row, ScoreModel model, const cpu::RowLoops& loops, float* values,
              RowFacts& facts) noexcept {
  facts.heads = row.heads;
  facts.dim = row.head_dim;
  facts.finite = true;
  for (int h = 0; h < row.heads; ++h) {
    float* const out = values + static_cast<std::ptrdiff_t>(h) * row.head_dim;
    double absolute = 0, square = 0;
    const bool nan = loops.read_head(row.q + h * row.head_stride, row.head_dim, out, &absolute, &square);
    const float weight = row.weights[h * row.weight_stride];
    if (!std::isfinite(weight) || (nan && model == ScoreModel::f64)) facts.finite = false;
    const bool silent = nan || absolute == 0 || weight == 0;
    if (silent) std::fill_n(out, row.head_dim, 0.0F);
    facts.weight[h] = silent ? 0.0 : static_cast<double>(weight);
    facts.absolute[h] = silent ? 0.0 : absolute;
    facts.norm[h] = silent ? 0.0 : std::sqrt(square) * kInflate;
  }
}

}  // namespace dosa::certificate
