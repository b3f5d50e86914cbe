// Blocks of one launch that tell each other things: counters in L2, and the barrier word that the driver gives every
// cooperative launch, zero at its start. The latter needs no memory that somebody cleared before.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace dosa::cuda::ptx {

__device__ inline void release_add(std::uint32_t* counter, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ inline std::uint32_t load_acquire(const std::uint32_t* counter) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ inline void pause() { __nanosleep(64); }

/// Of the driver's barrier: bit 31 turns when every block has arrived; block 0 brings what is missing to it. One thread
/// of each block arrives.
__device__ inline std::uint32_t* launch_barrier() {
  return &cooperative_groups::details::get_grid_workspace()->barrier;
}
__device__ inline std::uint32_t launch_arrive(std::uint32_t* barrier) {
  const std::uint32_t bring = blockIdx.x == 0 ? 0x80000000U - (gridDim.x - 1) : 1U;
  std::uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(barrier), "r"(bring) : "memory");
  return before;
}
__device__ inline void launch_wait(std::uint32_t* barrier, std::uint32_t before) {
  while (((load_acquire(barrier) ^ before) >> 31) == 0) pause();
}

}  // namespace dosa::cuda::ptx
