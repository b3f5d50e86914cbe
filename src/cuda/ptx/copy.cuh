// Copies into shared memory: the tensor copy engine (TMA) and cp.async.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace dosa::cuda::ptx {

/// Box of a tensor map at (byte of the key, row, page); completes `bytes of the box` on the barrier. What lies outside
/// the tensor arrives as zeros and counts as bytes all the same.
__device__ inline void tma_load(void* destination, const CUtensorMap* map, std::uint64_t* barrier, std::int32_t byte,
                                std::int32_t row, std::int32_t page) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(byte), "r"(row), "r"(page)
      : "memory");
}
/// Plain bytes; both addresses and the size are multiples of 16.
__device__ inline void bulk_load(void* destination, const void* source, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(destination)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int kBytes>
__device__ inline void copy_async(void* destination, const void* source) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(destination)), "l"(source)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(destination)), "l"(source),
                 "n"(kBytes)
                 : "memory");
  }
}
/// 16 bytes of a key's codes, which start at a multiple of `alignment` (16, 4 or 1); zeros where `from` is null.
__device__ inline void copy_piece(std::uint8_t* to, const std::uint8_t* from, std::int32_t alignment) {
  if (from == nullptr) {
    *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
  } else if (alignment == 16) {
    copy_async<16>(to, from);
  } else if (alignment == 4) {
#pragma unroll
    for (int word = 0; word < 4; ++word) copy_async<4>(to + 4 * word, from + 4 * word);
  } else {
#pragma unroll
    for (int byte = 0; byte < 16; ++byte) to[byte] = from[byte];
  }
}
/// Asks for the line in L2, of which a thread needs nothing yet.
__device__ inline void prefetch_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
__device__ inline void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace dosa::cuda::ptx
