// Launches that may start before the one ahead of them in the stream has ended (ptx/launch.cuh): between kernels of a
// few microseconds, starting one after another costs as much as they do.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/layout.hpp"

namespace dosa::cuda {

/// The kernel waits for what ran before by itself. `arguments`: as for cudaLaunchKernel.
inline cudaError_t launch_early(const void* kernel, int grid, int threads, std::size_t shared_bytes,
                                cudaStream_t stream, void** arguments) {
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
      error != cudaSuccess)
    return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = tuning().launches_in_order ? 0 : 1;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace dosa::cuda
