// What a call's kernels are told: the problem, the plan and the workspace as plain parameters.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "contract/backend.hpp"
#include "cuda/layout.hpp"
#include "cuda/params.hpp"

namespace dosa::cuda {

/// The first multiple of 256 in a workspace: what every layout's offsets count from.
std::byte* start_of(std::byte* workspace);

/// Rows, keys, options and how keys are loaded; outputs and the workspace are not set.
Params params_of(const detail::PlanState& state, const Problem& problem);
void set_outputs(Params& p, const Options& options, const Selection& selection);

/// A call of the scorer: parameters without outputs, and the tensor maps where the copy engine loads the keys.
struct Call {
  Params params{};
  Layout layout;
  CUtensorMap map{}, sample_map{};
  std::byte* base = nullptr;  ///< start of the workspace
};
/// One launch of the kernel for few rows (call.layout.few applies): its parameters and tensor map.
struct FewLaunch {
  FewParams few{};
  CUtensorMap map{};
};
FewLaunch few_launch(const Call& call, int pass);
Call make_call(const detail::PlanState& state, const Problem& problem, std::byte* workspace);

}  // namespace dosa::cuda
