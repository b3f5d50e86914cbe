// 64 < H <= 128: four blocks of 32 heads, weights from shared memory (128 of them do not fit in registers beside two
// accumulators).
#include "cuda/stream.cuh"

namespace dosa::cuda {

Kernel kernel_h128(int steps) {
  if (steps <= 2) return kernel_of<Config<4, 4, 2, true, 4>>();
  if (steps > 4) return kernel_of<Config<4, 4, 8, true, 2>>();
  return kernel_of<Config<4, 4, 4, true, 4>>();
}

}  // namespace dosa::cuda
