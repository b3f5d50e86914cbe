// What the CUDA backend counts.
#pragma once

#include <cstdint>

#include "dosa/export.hpp"

namespace dosa DOSA_PUBLIC {

/// Counters of the latest run with a workspace: the first bytes of the device workspace, rounded up to the next
/// multiple of 256. Read them whenever the stream has passed the run; nothing synchronises for them. Zeroed by every
/// run. A run over host tensors, which waits for the device anyhow, hands them out in Stats::device.
struct DeviceCounters {
  std::uint64_t candidates;    ///< (row, key) pairs in a candidate buffer; in one launch for few rows, that win or may
  std::uint64_t compactions;   ///< buffers cut back to the best K because they were full
  std::uint64_t repeats;       ///< rows streamed again because a predicted threshold was too high
  std::uint64_t sampled_rows;  ///< rows whose first threshold came from a sample of their keys
  std::uint64_t stages_tma;    ///< key stages that the tensor copy engine brought
  std::uint64_t stages_plain;  ///< key stages that ordinary copies brought
  std::uint64_t status;        ///< bit 0: a row_request out of range (empty row); bit 1: a visible page out of range
};

}  // namespace DOSA_PUBLIC
