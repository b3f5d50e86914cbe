// Omitted positive heads: anchors, folded coefficients and the allowance for what the anchors miss (T2, T3, T4).
#pragma once

#include "certificate/row.hpp"

namespace dosa::certificate {

/// sum over omitted h of w_h relu(q_h . k) <= sum over retained j of fold[j] relu(q_j . k) + sum over i of linear[i]
/// (q_i . k)
/// + min(norm * |k|, mean + centred * |k - mu|); indices are positions in the order handed to project().
struct Projection {
  double fold[kMaxHeads] = {};
  double linear[kMaxHeads] = {};
  bool half = false;   ///< linear[] is not all zero: it has to be part of the rows that are subtracted
  double norm = 0;     ///< radius of what is left
  double mean = 0;     ///< what is left at k = mu
  double centred = 0;  ///< radius about mu (the same number)
};

/// Exact Gram entries of the heads order[0..count-1], computed when first asked for; cache holds count * count entries.
class Gram {
 public:
  Gram(const RowFacts& facts, const float* values, const int* order, int count, const cpu::RowLoops& loops,
       double* cache) noexcept;
  [[nodiscard]] double operator()(int i, int j) noexcept;
  [[nodiscard]] int count() const noexcept { return count_; }

 private:
  const cpu::RowLoops& loops_;
  const float* values_;
  const int* order_;
  double* cache_;
  int dim_, count_;
};

/// order[0..retained-1] are kept, order[retained..gram.count()-1] (positive weights) are omitted; mean_dot[i] =
/// q_order[i] . mu within mean_error[i], or both null.
[[nodiscard]] Projection project(const RowFacts& facts, const int* order, int retained, Gram& gram,
                                 const double* mean_dot, const double* mean_error, const Ablation& ablation) noexcept;

}  // namespace dosa::certificate
