// wgmma of 32, 64 or 128 columns by the number of accumulators: few rows do not fill 128. An accumulator's bits do not
// depend on the columns.
#pragma once

#include "cuda/ptx/wgmma.cuh"

namespace dosa::cuda::ptx {

/// N = 2 * (accumulators a thread); layout as in wgmma_m64n128k32.
template <bool kAccumulate>
__device__ inline void wgmma_k32(float (&d)[16], std::uint64_t a, std::uint64_t b) {
  wgmma_m64n32k32<kAccumulate>(d, a, b);
}
template <bool kAccumulate>
__device__ inline void wgmma_k32(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "n"(kAccumulate ? 1 : 0));
}
template <bool kAccumulate>
__device__ inline void wgmma_k32(float (&d)[64], std::uint64_t a, std::uint64_t b) {
  wgmma_m64n128k32<kAccumulate>(d, a, b);
}

}  // namespace dosa::cuda::ptx
