// 32 < H <= 64. Ring depth: what fits beside the queries in 227 KiB.
#include "cuda/stream.cuh"

namespace dosa::cuda {

Kernel kernel_h64(int steps, std::int64_t rows_together) {
  if (steps <= 2) return kernel_of<Config<2, 2, 2, false, 4>>();
  if (steps > 4) return kernel_of<Config<2, 2, 8, false, 2>>();
  if (rows_together <= 4) return kernel_of<Config<2, 2, 4, true, 5>>();
  return kernel_of<Config<2, 2, 4, false, 4>>();
}

}  // namespace dosa::cuda
