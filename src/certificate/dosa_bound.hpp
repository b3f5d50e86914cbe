// DoSA's certificate (arXiv 2610.13990) for one query row: which heads to compute, what bounds the rest.
// Mathematics, floating-point model and proofs: docs/certificate.md (T1..Tn). Nothing here knows an instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/kernels.hpp"
#include "dosa/plan.hpp"
#include "score/score.hpp"

namespace dosa::certificate {

/// A sample of the row's keys with all head dots, what activations and survival are measured on.
struct Sample {
  int keys = 0;            ///< sampled keys (not necessarily distinct)
  int likely_winners = 0;  ///< the first so many are likely winners (seeds); the others are a uniform random sample
  int stride = 0;          ///< dots of head h: dots[h * stride + s]
  const float* dots = nullptr;     ///< approximate q_h . k of each head and sampled key (no claim of exactness needed)
  const float* scale = nullptr;    ///< k_scale [keys]
  const float* norm = nullptr;     ///< |k| [keys]
  const float* centred = nullptr;  ///< |k - mean| [keys]
  double winners = 0;              ///< expected share of winners among the random keys: K / visible
};

struct Measured;  ///< a row read once for all its forms

/// Where a narrow form's rows go: [H + 4][D] integers and [H + 4] factors; rows null: no narrow form is wanted.
struct NarrowTarget {
  std::int8_t* rows = nullptr;
  float* factors = nullptr;
};

struct RowInput {
  ScoreRow row;
  ScoreModel model;
  cpu::Arithmetic arithmetic;
  const float* mean = nullptr;  ///< [D], the mean handed to the pack; nullptr: none
  Ablation ablation;
  int retained_heads = 0;  ///< 0: choose by the sample
  Sample sample;
  double refine_cost = 1.4;   ///< cost of refining one survivor, in dense scores (measured: bench)
  cpu::NarrowCosts narrow{};  ///< of narrow forms, where there is a target
  NarrowTarget narrow_target{};
  float floor = -__builtin_inff();  ///< the row's predicted threshold, for Choice::kept
  const cpu::RowLoops* loops = &cpu::portable_kernels()->loops;
  const Measured* measured = nullptr;  ///< of this row and model, by measure(); nullptr: each form reads the row itself
};

/// Whether a form is to be narrow where it can be.
[[nodiscard]] inline bool wants_narrow(const RowInput& input) noexcept {
  return input.narrow_target.rows != nullptr && input.ablation.narrow;
}

struct Choice {
  bool finite = false;  ///< false: constants are not finite or may overflow; the row must be scored under the model
  int retained = 0;     ///< r
  int aggregates = 0;
  double survival = 1;  ///< predicted share of keys that survive
  double cost = 1;      ///< predicted cost relative to dense
  double screen = 1;    ///< the screen's share of it
  double kept = 1;      ///< share of the random keys whose bound reaches the floor
};

/// Scratch bytes that `dense_form` and `dosa_form` need (H and D up to the contract's limits).
[[nodiscard]] std::size_t scratch_bytes(int heads, int head_dim, int sample_keys);

/// Reads the row. What is returned lies in the scratch, where dosa_form with the same scratch leaves it in place.
[[nodiscard]] const Measured* measure(const RowInput& input, std::span<std::byte> scratch);

/// All heads retained: spec'd by the score itself; allow[] covers the arithmetic and the model (T7, T8). Returns false
/// where the row is not finite or may overflow. `rows` receives [H][D], `coef` [H]. With a target, which needs
/// `measured`, the form is narrow where it can be (T11).
[[nodiscard]] bool dense_form(const RowInput& input, float* rows, float* coef, cpu::FormSpec& spec,
                              const NarrowTarget& target = {});

/// The certificate's form. `rows` receives up to [H + 4][D], `coef` up to [H]. Where choice.finite is false nothing
/// else is set.
[[nodiscard]] Choice dosa_form(const RowInput& input, std::span<std::byte> scratch, float* rows, float* coef,
                               cpu::FormSpec& spec);

/// Cheap look before sampling: can any r beat dense for this row (positive heads, visible keys, K)?
[[nodiscard]] bool may_profit(const ScoreRow& row, std::int64_t keys, std::int64_t wanted,
                              const cpu::Costs& costs = {});

}  // namespace dosa::certificate
