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
  /// Queues a validated problem on a device stream; null for backends of the host.
  void (*run_on_stream)(const PlanState& state, const Problem& problem, const Selection& selection, void* workspace,
                        void* stream) = nullptr;
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
/// Null where the backend is not built in or finds no Hopper GPU; cuda_why() says which, in one sentence.
[[nodiscard]] const BackendTable* cuda_backend() noexcept;
[[nodiscard]] const std::string& cuda_why() noexcept;
/// Why this plan cannot go to the CUDA backend; empty where it can.
[[nodiscard]] std::string cuda_refuses(const Shape& shape, const Options& options);

}  // namespace dosa::detail
