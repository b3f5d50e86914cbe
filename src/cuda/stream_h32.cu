// H <= 32. Ring depth: what fits beside the queries in 227 KiB.
#include "cuda/stream.cuh"

namespace dosa::cuda {

Kernel kernel_h32(int steps, std::int64_t rows_together) {
  if (steps <= 2) return kernel_of<Config<1, 2, 2, false, 3>>();
  if (steps > 4) return kernel_of<Config<1, 2, 8, false, 2>>();
  if (rows_together <= 4) return kernel_of<Config<1, 1, 4, true, 5>>();
  if (rows_together <= 8) return kernel_of<Config<1, 2, 4, true, 4>>();
  return kernel_of<Config<1, 2, 4, false, 3>>();
}

}  // namespace dosa::cuda
