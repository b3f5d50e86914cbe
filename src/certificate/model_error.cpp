#include "certificate/model_error.hpp"

#include <algorithm>
#include <cmath>

#include "certificate/outward.hpp"
#include "score/e4m3.hpp"

namespace dosa::certificate {
namespace {

/// Largest 2^e over the nonzero values, e unnormalised (subnormal codes count as 2^-6); 0 where all are zero.
double largest_power(const float* values, int count) noexcept {
  float largest = 0;
  for (int d = 0; d < count; ++d) largest = std::max(largest, std::fabs(values[d]));
  if (largest == 0) return 0;
  return std::max(0x1p-6, std::ldexp(1.0, std::ilogb(largest)));
}

ModelError f64_error(const RowFacts& facts) noexcept {
  ModelError error;
  error.finite = facts.finite;
  double magnitude = 0;
  for (int h = 0; h < facts.heads; ++h) magnitude += std::fabs(facts.weight[h]) * facts.norm[h];
  error.feature[cpu::kNorm] = (facts.heads + 2) * 0x1p-53 * magnitude * kInflate;
  error.constant = facts.heads * 0x1p-1022;
  return error;
}

ModelError sm90_error(const RowFacts& facts, const float* values, const cpu::RowLoops& loops) noexcept {
  ModelError error;
  const int chunks = facts.dim / 32;
  // Padded heads G * 8 and n = G + 4 roundings a term passes.
  const int groups = std::max(2, (facts.heads + 7) / 8);
  const double roundings = groups + 4;
  const double gamma = roundings * 0x1p-24 / (1 - roundings * 0x1p-24);

  // Overflow: every partial sum stays below `largest`, before and after the scale.
  double largest = 0;
  for (int h = 0; h < facts.heads; ++h) largest += std::fabs(facts.weight[h]) * facts.absolute[h] * kMaxCode;
  largest *= (1 + 0x1p-10);
  error.finite = facts.finite && largest < 0x1p126;
  if (!error.finite) return error;
  if (largest > 0x1p-2) error.scale_limit = round_down(0x1p126 / largest * (1 - 0x1p-40));

  double joint[kMaxChunks];
  joint_prefix_norms(facts, values, joint, loops);
  const DotError dot = sm90_dot_error(chunks);
  for (int s = 0; s < chunks; ++s) {
    double products = 0;
    for (int h = 0; h < facts.heads; ++h) {
      if (facts.weight[h] == 0) continue;
      products +=
          std::fabs(facts.weight[h]) * largest_power(values + static_cast<std::ptrdiff_t>(h) * facts.dim + 32 * s, 32);
    }
    const double scale = (1 + gamma) * kInflate;
    error.feature[cpu::kModel + 2 * s] += dot.product[s] * products * scale;
    const int norm = s + 1 < chunks ? cpu::kModel + 2 * (s + 1) + 1 : static_cast<int>(cpu::kNorm);
    error.feature[norm] += dot.prefix[s] * joint[s] * scale;
  }
  error.feature[cpu::kNorm] += gamma * joint[chunks - 1] * kInflate;
  error.constant = 8 * groups * 0x1p-149;
  return error;
}

}  // namespace

ModelError model_error(ScoreModel model, const RowFacts& facts, const float* values,
                       const cpu::RowLoops& loops) noexcept {
  return model == ScoreModel::f64 ? f64_error(facts) : sm90_error(facts, values, loops);
}

void joint_prefix_norms(const RowFacts& facts, const float* values, double* joint,
                        const cpu::RowLoops& loops) noexcept {
  const int chunks = facts.dim / 32;
  double separate[kMaxChunks] = {};
  double gram[kMaxChunks] = {};
  for (int h = 0; h < facts.heads; ++h) {
    if (facts.weight[h] == 0) continue;
    const float* a = values + static_cast<std::ptrdiff_t>(h) * facts.dim;
    const double weight = std::fabs(facts.weight[h]);
    double square = 0;
    for (int s = 0; s < chunks; ++s) {
      square += loops.exact_dot(a + 32 * s, a + 32 * s, 32);
      separate[s] += weight * std::sqrt(square);
      gram[s] += weight * weight * square;
    }
    for (int l = h + 1; l < facts.heads; ++l) {
      if (facts.weight[l] == 0) continue;
      const float* b = values + static_cast<std::ptrdiff_t>(l) * facts.dim;
      const double pair = 2 * weight * std::fabs(facts.weight[l]);
      // F32 sums of 32 exact-in-binary64 products: an error of 2^-18 of the sum of magnitudes is added at the end.
      float part[8] = {};
      for (int s = 0; s < chunks; ++s) {
        for (int d = 32 * s; d < 32 * s + 32; d += 8) {
          for (int i = 0; i < 8; ++i) part[i] += a[d + i] * b[d + i];
        }
        const double sum = static_cast<double>((part[0] + part[1]) + (part[2] + part[3])) +
                           static_cast<double>((part[4] + part[5]) + (part[6] + part[7]));
        gram[s] += pair * std::fabs(sum);
      }
    }
  }
  for (int s = 0; s < chunks; ++s) {
    // |computed - exact Gram entry| <= (36 + 4) 2^-24 |q_h| |q_l|; its weighted sum is at most separate^2.
    const double bound = std::sqrt(gram[s] + 40 * 0x1p-24 * separate[s] * separate[s]);
    joint[s] = std::min(separate[s], bound) * kInflate;
  }
}

DotError sm90_dot_error(int chunks) noexcept {
  DotError error;
  constexpr double kUnit = 0x1p-13;       // u_s = 2^-13 * 2^E_s
  constexpr double kLosing = 32 * kUnit;  // terms that may lose bits in a step
  constexpr double kGrow = (1 + kUnit) * (1 + kLosing);
  for (int s = 0; s < chunks; ++s) {
    for (int t = 0; t < s; ++t) {
      error.product[t] *= kGrow;
      error.prefix[t] *= kGrow;
    }
    const double losing = (s == 0 ? 31 * kUnit : kLosing) * (1 + kUnit);
    error.product[s] += losing;
    if (s > 0) error.prefix[s - 1] += losing;
    error.prefix[s] += kUnit;
  }
  for (int s = 0; s < chunks; ++s) {
    error.product[s] *= kInflate;
    error.prefix[s] *= kInflate;
  }
  return error;
}

}  // namespace dosa::certificate
