// The CUDA backend (sm_90a): running on a stream; what a run counted lies in device_counters.hpp.
#pragma once

#include <cstddef>

#include "dosa/device_counters.hpp"  // IWYU pragma: export
#include "dosa/export.hpp"
#include "dosa/plan.hpp"

namespace dosa DOSA_PUBLIC {

/// What run() does, queued on a CUDA stream (a cudaStream_t): no allocation, no host synchronisation, nothing read
/// back; may be captured in a CUDA graph and replayed with other lengths, tables and values. The plan's backend is cuda
/// and its shape's device is one; every view lies there. `workspace`: plan.workspace_bytes() bytes of device memory,
/// not shared with a run that may still be going on. Throws Error{bad_input} for shapes, strides and addresses that do
/// not match the plan; what lies in device memory is not looked at (DeviceCounters::status tells afterwards),
/// {not_available} where the backend is not built in, {internal} where CUDA refuses a launch.
void run_on_stream(const Plan& plan, const Problem& problem, const Selection& selection, void* workspace,
                   std::size_t workspace_bytes, void* stream);

}  // namespace DOSA_PUBLIC
