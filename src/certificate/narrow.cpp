#include "certificate/narrow.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "certificate/outward.hpp"

namespace dosa::certificate {
namespace {

// The largest element of a relu row becomes 64 to 120 (E4M3 has four significant bits), so that all elements down to an
// eighth of the largest power of two are integers; that of an aggregate row 2^12 to 2^13, of which 128 times the high
// integer leaves at most 64 to the low one.
constexpr int kReluBits = 6, kAggregateBits = 12;
constexpr double kHigh = 128;

/// As integers: compilers turn a maximum of those into vectors, one of floats not.
float largest_of(const float* row, int dim) noexcept {
  std::int32_t largest = 0;
  for (int d = 0; d < dim; ++d) largest = std::max(largest, std::bit_cast<std::int32_t>(row[d]) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

double step_of(float largest, int bits) noexcept {
  return largest > 0 ? std::ldexp(1.0, std::ilogb(largest) - bits) : 1;
}

/// The nearest integer of a number below 2^22 (std::nearbyint is a call): the sum's last bit is worth 1. Rounding is to
/// nearest while constants are made.
template <class Real>
Real nearest(Real x) noexcept {
  constexpr Real kShift = sizeof(Real) == sizeof(float) ? Real{0x1.8p23} : Real{0x1.8p52};
  return (x + kShift) - kShift;
}

double norm_of(const double* v, int dim) noexcept {
  double square = 0;
  for (int d = 0; d < dim; ++d) square += v[d] * v[d];
  return std::sqrt(square) * kInflate;
}

/// sqrt(sum over j, l of |c_j c_l v_j . v_l|) from above, for vectors of multiples of 2^-9 below 2^9; `sizes`: the sum
/// of |c_j| |v_j| or more.
double joint_norm(const float* coef, int count, int dim, const cpu::RowLoops& loops, const float* vectors,
                  double sizes) noexcept {
  return std::sqrt(loops.joint_square(vectors, coef, count, dim) + 0x1p-15 * sizes * sizes) * kInflate;
}

}  // namespace

NarrowAllowance narrow_form(const RealBound& bound, const RowFacts& facts, const float* values, const float* coef,
                            const cpu::RowLoops& loops, const NarrowTarget& target, float* rows) noexcept {
  const int dim = facts.dim, relu = bound.retained;
  const auto head = [&](int j) { return values + static_cast<std::ptrdiff_t>(bound.head[j]) * dim; };
  const auto row = [&](int j) { return rows + static_cast<std::ptrdiff_t>(j) * dim; };
  double steps[kMaxHeads + kMaxAggregates] = {};
  for (int j = 0; j < relu + bound.aggregates; ++j) {
    const bool aggregate = j >= relu;
    steps[j] =
        step_of(aggregate ? largest_of(row(j), dim) : largest_of(head(j), dim), aggregate ? kAggregateBits : kReluBits);
    const double factor = steps[j] * (aggregate ? 1 : static_cast<double>(coef[j]));
    target.factors[j] = static_cast<float>(factor);
    const auto stored = static_cast<double>(target.factors[j]);
    if (stored != factor || std::fabs(stored) < 0x1p-120 || std::fabs(stored) > 0x1p120) {
      if (factor != 0) return {};
    }
  }

  double terms = 0, error_sizes = 0;  // an error's elements are at most half a step
  for (int j = 0; j < relu; ++j) {
    const double size = std::fabs(static_cast<double>(coef[j]));
    terms += size * facts.norm[bound.head[j]];
    error_sizes += size * steps[j] / 2 * std::sqrt(static_cast<double>(dim));
  }
  const double joint = joint_norm(coef, relu, dim, loops, rows, terms);  // the heads, as make_form has copied them
  double lost[kMaxDim] = {}, half[kMaxDim] = {};                         // V of the errors; half of V of the rows
  for (int j = 0; j < relu; ++j) {
    const float* const q = head(j);
    // Powers of two that F32 holds, as all that is computed with them: an E4M3 row's largest is 2^-9 to 448.
    const auto step = static_cast<float>(steps[j]), inverse = static_cast<float>(1 / steps[j]);
    std::int8_t* const out = target.rows + static_cast<std::ptrdiff_t>(j) * dim;
    float* const error = row(j);
    for (int d = 0; d < dim; ++d) {
      const float integer = nearest(q[d] * inverse);
      out[d] = static_cast<std::int8_t>(integer);
      error[d] = q[d] - step * integer;
    }
    const auto c = static_cast<double>(coef[j]), half_c = c / 2;
    for (int d = 0; d < dim; ++d) {
      lost[d] += c * static_cast<double>(error[d]);
      half[d] += half_c * static_cast<double>(q[d]);
    }
  }

  // The zero row, where it is one of the rows whose largest is subtracted.
  double linear = bound.clamp || bound.aggregates == 0 ? norm_of(half, dim) : 0;
  double aggregate_lost = 0;
  for (int a = 0; a < bound.aggregates; ++a) {
    const float* const values_of_row = row(relu + a);
    const double step = steps[relu + a];
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

  const double errors = joint_norm(coef, relu, dim, loops, rows, error_sizes);
  // Sums of up to 2^8 numbers of either sign lose up to 2^-44 of their magnitudes.
  const double rounding = terms * 0x1p-44;
  const double norm = (norm_of(lost, dim) + errors) / 2 + aggregate_lost + rounding;
  return {true, norm, linear + joint / 2 + rounding + norm};
}

}  // namespace dosa::certificate
