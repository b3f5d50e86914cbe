// What a backend implements. One table a backend; plan.cpp is the only dispatcher.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dosa/plan.hpp"

namespace dosa::detail {

struct PlanState;

struct BackendTable {
  Backend backend;
  /// Completes a plan whose shape and options are valid: memory, threads, instruction set, reason.
  void (*plan)(PlanState& state);
  /// Computes a validated problem.
  void (*run)(const PlanState& state, const Problem& problem, const Selection& selection,
              std::span<std::byte> workspace, Carry carry, Stats& stats);
  /// Scores of a validated problem; `state` as completed by plan().
  void (*scores)(const PlanState& state, const Problem& problem, TensorView<float, 2> out);
};

struct PlanState {
  Shape shape;
  Options options;
  const BackendTable* backend = nullptr;
  bool backend_asked = false;  ///< by name; else the choice was automatic
  std::size_t workspace_bytes = 0;
  std::size_t carry_bytes = 0;
  std::string why;
};

[[nodiscard]] const BackendTable& reference_backend() noexcept;
[[nodiscard]] const BackendTable& cpu_backend() noexcept;

}  // namespace dosa::detail
