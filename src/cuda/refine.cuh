// Launch of the kernel that scores given (row, key) pairs and selects from them; refine.hpp is what others call.
#pragma once

#include <cuda_runtime.h>

#include "cuda/params.hpp"

namespace dosa::cuda {

/// `call`: as the scorer has it, with chunks (pieces of each row's keys), capacity, buffers ([blocks in flight,
/// capacity] where chunks is 1, else [rows, chunks, capacity]) and counts ([rows, chunks]). With call.matrix set,
/// scores go there and nothing is selected.
struct RefineParams {
  Params call;
  const std::uint32_t* mask;  ///< at a multiple of 16 bytes
  std::int64_t mask_row;      ///< 32-bit words from row to row, a multiple of 4
  std::uint32_t* ticket;      ///< 0 when the kernel starts
};

constexpr int kRefineStepKeys = 16384;  ///< keys whose mask bits a block reads at once: what pieces of keys are made of

/// Blocks of the kernel that an SM holds.
int refine_blocks_per_sm(std::int32_t heads);
cudaError_t launch_refine(const RefineParams& r, int grid, cudaStream_t stream);

}  // namespace dosa::cuda
