// Shared memory barriers of the key ring, named barriers of the consumers, shared addresses.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace dosa::cuda::ptx {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void mbarrier_init(std::uint64_t* barrier, std::uint32_t count) {
  ::cuda::ptx::mbarrier_init(barrier, count);
}
/// Makes initialised barriers visible to the copy engine.
__device__ inline void fence_barrier_init() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}
/// Orders this thread's ordinary shared memory accesses before later ones of the copy engine and the tensor cores.
__device__ inline void fence_async_proxy() { ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared); }

__device__ inline void mbarrier_arrive(std::uint64_t* barrier) {
  static_cast<void>(::cuda::ptx::mbarrier_arrive(barrier));
}
__device__ inline void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  static_cast<void>(::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                                           ::cuda::ptx::space_shared, barrier, bytes));
}
/// Arrives when this thread's earlier cp.async copies have landed.
__device__ inline void mbarrier_arrive_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  // Not cuda::ptx: its bool costs the loop five instructions.
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

template <int kId, int kMembers>
__device__ inline void named_barrier() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kId), "n"(kMembers) : "memory");
}
/// The barrier, and whether any thread at it brought `mine`.
template <int kId, int kMembers>
__device__ inline bool named_barrier_any(bool mine) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<std::uint32_t>(mine)), "n"(kId), "n"(kMembers)
      : "memory");
  return any != 0;
}

__device__ inline void shared_store(std::uint32_t address, float first, std::uint32_t second) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(__float_as_uint(first)), "r"(second) : "memory");
}
/// The thread's number, read again where it is asked for: it takes no register of a hot loop.
__device__ inline std::uint32_t thread_again() {
  std::uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ inline std::uint32_t lanes_below() {
  std::uint32_t mask;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

__device__ inline std::uint32_t shared_add(std::uint32_t* counter, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(counter)), "r"(value)
               : "memory");
  return before;
}

}  // namespace dosa::cuda::ptx
