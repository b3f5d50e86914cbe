// The CUDA backend (sm_90a): running on a stream, and what a run counted.
#pragma once

#include <cstdint>

#include "dosa/export.hpp"
#include "dosa/plan.hpp"

namespace dosa DOSA_PUBLIC {

/// Counters of the latest run with a workspace: the first bytes of the device workspace, rounded up to the next
/// multiple of 256. Read them whenever the stream has passed the run; nothing synchronises for them. Zeroed by every
/// run.
struct DeviceCounters {
  std::uint64_t candidates;    ///< (row, key) pairs that reached a candidate buffer
  std::uint64_t compactions;   ///< buffers cut back to the best K because they were full
  std::uint64_t repeats;       ///< rows streamed again because a predicted threshold was too high
  std::uint64_t sampled_rows;  ///< rows whose first threshold came from a sample of their keys
  std::uint64_t stages_tma;    ///< key stages that the tensor copy engine brought
  std::uint64_t stages_plain;  ///< key stages that ordinary copies brought
  std::uint64_t status;        ///< bit 0: a row_request out of range (empty row); bit 1: a visible page out of range
};

/// What run() does, queued on a CUDA stream (a cudaStream_t): no allocation, no host synchronisation, nothing read
/// back; may be captured in a CUDA graph and replayed with other lengths, tables and values. The plan's backend is cuda
/// and its shape's device is one; every view lies there. `workspace`: plan.workspace_bytes() bytes of device memory,
/// not shared with a run that may still be going on. Throws Error{bad_input} for shapes, strides and addresses that do
/// not match the plan; what lies in device memory is not looked at (DeviceCounters::status tells afterwards),
/// {not_available} where the backend is not built in, {internal} where CUDA refuses a launch.
void run_on_stream(const Plan& plan, const Problem& problem, const Selection& selection, void* workspace,
                   std::size_t workspace_bytes, void* stream);

}  // namespace DOSA_PUBLIC
