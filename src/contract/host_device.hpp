// Marks the small rules that the CUDA kernels share with the host, so that each is written once.
#pragma once

#if defined(__CUDACC__)
#define DOSA_HOST_DEVICE __host__ __device__
#else
#define DOSA_HOST_DEVICE
#endif
