// How far a score model's bits may lie from the real sum (T8), as linear functions of a key's features.
#pragma once

#include "certificate/row.hpp"

namespace dosa::certificate {

/// |model before its last rounding / k_scale - sum of w_h relu(q_h . k)| <= sum of feature[f] * (key's feature f) +
/// constant, for every key whose scale is in [0, scale_limit]; not valid where finite is false.
struct ModelError {
  bool finite = false;
  double feature[cpu::kMaxFeatures] = {};
  double constant = 0;
  float scale_limit = 3.40282347e38F;
};

[[nodiscard]] ModelError model_error(ScoreModel model, const RowFacts& facts, const float* values,
                                     const cpu::RowLoops& loops = cpu::portable_kernels()->loops) noexcept;

struct Measured {
  RowFacts facts;
  ModelError model;         ///< not finite where the facts are not
  float* values = nullptr;  ///< [H][D] of read_row
};

/// Upper bound of sup over keys of sum over h of |w_h| |q_h . k| / |k| on dimensions [0, 32 s), for s = 1..D/32 (T8).
void joint_prefix_norms(const RowFacts& facts, const float* values, double* joint,
                        const cpu::RowLoops& loops = cpu::portable_kernels()->loops) noexcept;

/// Error of one sm90 dot after all steps as a linear form (T8): error <= sum over s of product[s] * B_s + prefix[s] *
/// |y_s|, B_s = largest 2^(e_a + e_b) of chunk s, y_s = exact dot over chunks 0..s.
struct DotError {
  double product[kMaxChunks] = {};
  double prefix[kMaxChunks] = {};
};
[[nodiscard]] DotError sm90_dot_error(int chunks) noexcept;

}  // namespace dosa::certificate
