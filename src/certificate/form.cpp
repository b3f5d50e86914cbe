#include "certificate/form.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "certificate/narrow.hpp"
#include "certificate/outward.hpp"

namespace dosa::certificate {
namespace {

constexpr double kNarrowMagnitude = 1.3;  // (9/8)^2

}  // namespace

bool make_form(const RealBound& bound, const RowFacts& facts, const ModelError& model,
               const cpu::Arithmetic& arithmetic, int features, const float* mean, const float* values, float* rows,
               float* coef, cpu::FormSpec& spec, const NarrowTarget& target, const cpu::RowLoops& loops) noexcept {
  if (!facts.finite || !model.finite) return false;
  const int dim = facts.dim;
  spec = cpu::FormSpec{};
  spec.head_dim = dim;
  spec.relu_rows = bound.retained;
  spec.aggregate_rows = bound.aggregates;
  spec.rows = rows;
  spec.coef = coef;
  spec.scale_limit = model.scale_limit;
  if (!bound.clamp && bound.aggregates > 0) spec.aggregate_floor = -INFINITY;

  // Magnitudes per unit of |k| (T7) and in absolute terms (overflow).
  double relu_magnitude = 0, largest = 0;
  for (int j = 0; j < bound.retained; ++j) {
    const int h = bound.head[j];
    coef[j] = round_up(bound.coef[j]);
    const double size = std::fabs(static_cast<double>(coef[j]));
    relu_magnitude += size * facts.norm[h];
    largest += size * facts.absolute[h] * kMaxCode;
    if (rows != values)
      std::memcpy(rows + static_cast<std::ptrdiff_t>(j) * dim, values + static_cast<std::ptrdiff_t>(h) * dim,
                  sizeof(float) * static_cast<std::size_t>(dim));
  }

  // As far as F32 rows go; a narrow form has what it loses from T11 instead.
  double aggregate_magnitude = 0, aggregate_error = 0, f32_error = 0;
  for (int a = 0; a < bound.aggregates; ++a) {
    double sum[kMaxDim] = {};
    double terms = 0;  // sum of |share| |q_h|: bounds the norm of the roundings of `sum`
    for (int h = 0; h < facts.heads; ++h) {
      const double share = bound.share[a][h];
      if (share == 0) continue;
      const float* q = values + static_cast<std::ptrdiff_t>(h) * dim;
      for (int d = 0; d < dim; ++d) sum[d] += share * static_cast<double>(q[d]);
      terms += std::fabs(share) * facts.norm[h];
    }
    float* row = rows + static_cast<std::ptrdiff_t>(bound.retained + a) * dim;
    double square = 0, absolute = 0;
    for (int d = 0; d < dim; ++d) {
      row[d] = static_cast<float>(sum[d]);
      const auto value = static_cast<double>(row[d]);
      square += value * value;
      absolute += std::fabs(value);
    }
    // F32 rounding: at most 2^-24 of each element, or the subnormal quantum, which `constant` covers below.
    const double norm = std::sqrt(square) * kInflate;
    const double stored = norm * (1 + arithmetic.row_error);
    aggregate_magnitude = std::max(aggregate_magnitude, stored);
    aggregate_error = std::max(
        aggregate_error, norm * (0x1p-23 + arithmetic.row_error) + stored * arithmetic.dot_error + terms * 0x1p-44);
    f32_error = std::max(f32_error, norm * 0x1p-23 + terms * 0x1p-44);
    largest += absolute * (1 + arithmetic.row_error) * kMaxCode;
  }

  NarrowAllowance narrow;
  if (target.rows != nullptr) narrow = narrow_form(bound, facts, values, coef, loops, target, rows);
  if (narrow.fits) {
    spec.narrow = target.rows;
    spec.narrow_factor = target.factors;
    // An integer row, and a key's, is at most 9/8 of what it stands for, an integer's sum of magnitudes at most three
    // times the real one; what operations lose before the key's step (at most 4) is multiplied, too.
    relu_magnitude *= kNarrowMagnitude;
    aggregate_magnitude *= kNarrowMagnitude;
    largest *= 4;
  }
  const double dot_error = narrow.fits ? 0 : arithmetic.dot_error;

  const int operations =
      bound.retained + bound.aggregates + features + 12 + (narrow.fits ? 2 * bound.aggregates + 3 : 0);
  const double rounding = operations * arithmetic.epilogue_error * (1 + 0x1p-6);
  const double grow = (1 + 2 * rounding) * kInflate;
  const double evaluation = relu_magnitude * dot_error + (narrow.fits ? f32_error : aggregate_error) +
                            rounding * (relu_magnitude + aggregate_magnitude) * (1 + dot_error);
  double allow[cpu::kMaxFeatures] = {};
  for (int f = 0; f < features; ++f) allow[f] = model.feature[f];
  allow[cpu::kNorm] += evaluation + narrow.norm;
  spec.allow_residual = round_up(narrow.residual * grow);

  // Underflow: every operation may lose up to 2^-126 (flushed subnormals), every element of an aggregate up to 2^-126 *
  // 448.
  double constant = model.constant + operations * (narrow.fits ? 0x1p-122 : 0x1p-125);
  if (bound.aggregates > 0) constant += dim * kMaxCode * 0x1p-124;

  if (bound.rest.norm > 0) {
    if (bound.centred && mean != nullptr) {
      spec.has_alternative = true;
      spec.alt_norm = round_up(bound.rest.norm * grow);
      spec.alt_mean = round_up(bound.rest.mean * grow);
      spec.alt_centred = round_up(bound.rest.centred * grow);
    } else {
      allow[cpu::kNorm] += bound.rest.norm;
    }
  }
  spec.constant = round_up(constant * grow);
  constexpr double kMaxNorm = kMaxCode * 16;
  double allowance = static_cast<double>(spec.constant) + static_cast<double>(spec.allow_residual) * 2 * kMaxNorm;
  for (int f = 0; f < features; ++f) {
    spec.allow[f] = round_up(allow[f] * grow);
    allowance += static_cast<double>(spec.allow[f]) * 2 * kMaxNorm;
  }
  allowance += static_cast<double>(spec.alt_norm) * kMaxNorm;
  if (spec.has_alternative && mean != nullptr) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += static_cast<double>(mean[d]) * static_cast<double>(mean[d]);
    allowance +=
        static_cast<double>(spec.alt_mean) + static_cast<double>(spec.alt_centred) * (kMaxNorm + std::sqrt(square)) * 2;
  }
  return largest + allowance < 0x1p126;  // false for NaN
}

}  // namespace dosa::certificate
