// The scorer's instantiations, chosen by heads, dimensions and rows. One translation unit a number of heads.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda/params.hpp"

namespace dosa::cuda {

/// What the host needs of one kernel.
struct Kernel {
  int rows = 0;  ///< of a block
  int stage_keys = 0;
  int shared_bytes = 0;
  const void* function = nullptr;
};

/// `rows_together`: rows that are likely to walk the same keys; small numbers get kernels that waste fewer columns.
Kernel kernel_h32(int steps, std::int64_t rows_together);
Kernel kernel_h64(int steps, std::int64_t rows_together);
Kernel kernel_h128(int steps);

}  // namespace dosa::cuda
