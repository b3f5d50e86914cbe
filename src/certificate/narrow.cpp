#include "certificate/narrow.hpp"

#include <algorithm>
#include <cmath>

#include "certificate/outward.hpp"

namespace dosa::certificate {
namespace {

// The largest element of a relu row becomes 64 to 120 (E4M3 has four significant bits), so that all elements down to an
// eighth of the largest power of two are integers; that of an aggregate row 2^12 to 2^13, of which 128 times the high
// integer leaves at most 64 to the low one.
constexpr int kReluBits = 6, kAggregateBits = 12;
constexpr double kHigh = 128;

float largest_of(const float* row, int dim) noexcept {
  float largest = 0;
  for (int d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(row[d]));
  return largest;
}

double step_of(float largest, int bits) noexcept {
  return largest > 0 ? std::ldexp(1.0, std::ilogb(largest) - bits) : 1;
}

/// The nearest integer of a number below 2^22 (std::nearbyint is a call): the sum's last bit is worth 1. Rounding is to
/// nearest while constants are made.
double nearest(double x) noexcept {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

double norm_of(const double* v, int dim) noexcept {
  double square = 0;
  for (int d = 0; d < dim; ++d) square += v[d] * v[d];
  return std::sqrt(square) * kInflate;
}

/// sqrt(sum over j, l of |c_j c_l v_j . v_l|), vectors of multiples of 2^-9 below 2^9, whose dot products are exact.
template <class Vector>
double joint_norm(const float* coef, int count, int dim, const cpu::RowLoops& loops, const Vector& vector) noexcept {
  double sum = 0;
  for (int j = 0; j < count; ++j) {
    const double own = std::fabs(static_cast<double>(coef[j]));
    sum += own * own * loops.exact_dot(vector(j), vector(j), dim);
    for (int l = 0; l < j; ++l)
      sum += 2 * own * std::fabs(static_cast<double>(coef[l]) * loops.exact_dot(vector(j), vector(l), dim));
  }
  return std::sqrt(sum) * kInflate;
}

}  // namespace

NarrowAllowance narrow_form(const RealBound& bound, const RowFacts& facts, const float* values, const float* coef,
                            const cpu::RowLoops& loops, const NarrowTarget& target, float* rows) noexcept {
  const int dim = facts.dim, relu = bound.retained;
  const auto head = [&](int j) { return values + static_cast<std::ptrdiff_t>(bound.head[j]) * dim; };
  const auto row = [&](int j) { return rows + static_cast<std::ptrdiff_t>(j) * dim; };
  for (int j = 0; j < relu + bound.aggregates; ++j) {
    const bool aggregate = j >= relu;
    const double step =
        step_of(aggregate ? largest_of(row(j), dim) : largest_of(head(j), dim), aggregate ? kAggregateBits : kReluBits);
    const double factor = step * (aggregate ? 1 : static_cast<double>(coef[j]));
    target.factors[j] = static_cast<float>(factor);
    const auto stored = static_cast<double>(target.factors[j]);
    if (stored != factor || std::fabs(stored) < 0x1p-120 || std::fabs(stored) > 0x1p120) {
      if (factor != 0) return {};
    }
  }

  double lost[kMaxDim] = {}, half[kMaxDim] = {};  // V of the errors; half of V of the rows
  double terms = 0;
  for (int j = 0; j < relu; ++j) {
    const float* const q = head(j);
    const double step = step_of(largest_of(q, dim), kReluBits), inverse = 1 / step;  // powers of two: exact
    const auto c = static_cast<double>(coef[j]);
    std::int8_t* const out = target.rows + static_cast<std::ptrdiff_t>(j) * dim;
    float* const error = row(j);
    for (int d = 0; d < dim; ++d) {
      const auto value = static_cast<double>(q[d]);
      const double integer = nearest(value * inverse);
      out[d] = static_cast<std::int8_t>(integer);
      const double left = value - step * integer;
      error[d] = static_cast<float>(left);
      lost[d] += c * left;
      half[d] += c * value / 2;
    }
    terms += std::fabs(c) * facts.norm[bound.head[j]];
  }

  // The zero row, where it is one of the rows whose largest is subtracted.
  double linear = bound.clamp || bound.aggregates == 0 ? norm_of(half, dim) : 0;
  double aggregate_lost = 0;
  for (int a = 0; a < bound.aggregates; ++a) {
    const float* const values_of_row = row(relu + a);
    const double step = step_of(largest_of(values_of_row, dim), kAggregateBits);
    std::int8_t* const high = target.rows + static_cast<std::ptrdiff_t>(relu + 2 * a) * dim;
    std::int8_t* const low = high + dim;
    double error[kMaxDim], difference[kMaxDim];
    for (int d = 0; d < dim; ++d) {
      const auto value = static_cast<double>(values_of_row[d]);
      const double integer = nearest(value / step), upper = nearest(integer / kHigh);
      high[d] = static_cast<std::int8_t>(upper);
      low[d] = static_cast<std::int8_t>(integer - kHigh * upper);
      error[d] = value - step * integer;
      difference[d] = half[d] - value;
    }
    aggregate_lost = std::max(aggregate_lost, norm_of(error, dim));
    const double norm = norm_of(difference, dim);
    linear = std::max(linear, norm);
    terms += norm;
  }

  const double errors = joint_norm(coef, relu, dim, loops, [&](int j) { return row(j); });
  const double joint = joint_norm(coef, relu, dim, loops, [&](int j) { return head(j); });
  // Sums of up to 2^8 numbers of either sign lose up to 2^-44 of their magnitudes.
  const double rounding = terms * 0x1p-44;
  const double norm = (norm_of(lost, dim) + errors) / 2 + aggregate_lost + rounding;
  return {true, norm, linear + joint / 2 + rounding + norm};
}

}  // namespace dosa::certificate
