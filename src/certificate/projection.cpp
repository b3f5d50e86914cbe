#include "certificate/projection.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "certificate/outward.hpp"

namespace dosa::certificate {

Gram::Gram(const RowFacts& facts, const float* values, const int* order, int count, const cpu::RowLoops& loops,
           double* cache) noexcept
    : loops_(loops), values_(values), order_(order), cache_(cache), dim_(facts.dim), count_(count) {
  std::fill_n(cache, count * count, std::numeric_limits<double>::quiet_NaN());
}

double Gram::operator()(int i, int j) noexcept {
  double& entry = cache_[std::max(i, j) * count_ + std::min(i, j)];
  if (std::isnan(entry)) {
    const auto head = [&](int position) { return values_ + static_cast<std::ptrdiff_t>(order_[position]) * dim_; };
    entry = loops_.exact_dot(head(i), head(j), dim_);
  }
  return entry;
}

Projection project(const RowFacts& facts, const int* order, int retained, Gram& gram, const double* mean_dot,
                   const double* mean_error, const Ablation& ablation) noexcept {
  Projection result;
  const int omitted = gram.count() - retained;
  if (omitted <= 0) return result;
  const auto g = [&](int i, int j) { return gram(i, j); };

  // T2: beta minimises |q_h - beta q_j| over beta >= 0 and j; any beta >= 0 is valid, so its rounding is harmless as
  // long as everything below uses the same beta.
  int anchor[kMaxHeads];
  double beta[kMaxHeads];
  for (int o = 0; o < omitted; ++o) {
    const int h = retained + o;
    anchor[o] = -1;
    beta[o] = 0;
    if (!ablation.projection) continue;
    double best = 0;
    for (int j = 0; j < retained; ++j) {
      const double dot = g(h, j);
      if (dot <= 0) continue;
      const double gain = dot * dot / g(j, j);
      if (gain > best) {
        best = gain;
        anchor[o] = j;
        beta[o] = dot / g(j, j);
      }
    }
    if (anchor[o] >= 0) result.fold[anchor[o]] += facts.weight[order[h]] * beta[o] * kInflate;
  }

  // T3: Gram matrix of u_h = w_h (q_h - beta_h q_j): every entry with the binary64 roundings of its own formula.
  double separate = 0, sum = 0, absolute = 0;
  for (int a = 0; a < omitted; ++a) {
    const int ha = retained + a, ja = anchor[a];
    const double wa = facts.weight[order[ha]];
    for (int b = 0; b <= a; ++b) {
      const int hb = retained + b, jb = anchor[b];
      const double wb = facts.weight[order[hb]];
      double entry = g(ha, hb), magnitude = std::fabs(entry);
      const auto add = [&](double term) {
        entry += term;
        magnitude += std::fabs(term);
      };
      if (jb >= 0) add(-beta[b] * g(ha, jb));
      if (ja >= 0) add(-beta[a] * g(hb, ja));
      if (ja >= 0 && jb >= 0) add(beta[a] * beta[b] * g(ja, jb));
      const double slack = magnitude * 0x1p-48;
      const double upper = std::fabs(entry) + slack;
      if (a == b) {
        separate += wa * std::sqrt(upper);
        sum += wa * wa * (entry + slack);
        absolute += wa * wa * upper;
      } else {
        sum += 2 * wa * wb * (entry + slack);
        absolute += 2 * wa * wb * upper;
      }
    }
  }
  // `sum` has signed terms: its own roundings are below 2^-40 of `absolute`.
  const double gram_norm = std::sqrt(absolute) * (1 + 0x1p-40);
  const double joint = (std::sqrt(std::max(0.0, sum) + absolute * 0x1p-36) + gram_norm) / 2;
  result.half = ablation.half_linear;
  double radius = separate;
  if (ablation.joint_residual) radius = std::min(separate, result.half ? gram_norm : joint);
  if (result.half) {
    // relu(u . k) = (u . k) / 2 + |u . k| / 2: the first half is a linear row, only the second needs a radius.
    radius /= 2;
    for (int a = 0; a < omitted; ++a) {
      const double weight = facts.weight[order[retained + a]];
      result.linear[retained + a] = weight / 2;
      if (anchor[a] >= 0) result.linear[anchor[a]] -= weight * beta[a] / 2;
    }
  }
  radius *= kInflate;
  result.norm = radius;
  result.centred = radius;

  if (mean_dot != nullptr) {
    for (int a = 0; a < omitted; ++a) {
      const int h = retained + a;
      double dot = mean_dot[h], error = mean_error[h] + std::fabs(dot) * 0x1p-50;
      if (anchor[a] >= 0) {
        dot -= beta[a] * mean_dot[anchor[a]];
        error += beta[a] * (mean_error[anchor[a]] + std::fabs(mean_dot[anchor[a]]) * 0x1p-50);
      }
      const double at_mean = result.half ? (std::fabs(dot) + error) / 2 : std::max(0.0, dot + error);
      result.mean += facts.weight[order[h]] * at_mean;
    }
    result.mean *= kInflate;
  }
  return result;
}

}  // namespace dosa::certificate
