// A row's heads as the kernels hold them: codes in pieces of 16 bytes, weights, what padding heads have, and relu.
#pragma once

#include "cuda/params.hpp"

namespace dosa::cuda {

/// Codes [16 piece, 16 piece + 16) of a head; zeros for rows, heads and dimensions that are padding.
__device__ inline uint4 query_piece(const Params& p, int t, int head, int piece) {
  if (t >= p.rows || head >= p.heads || piece * 16 >= p.head_dim) return make_uint4(0, 0, 0, 0);
  const std::uint8_t* const from = p.q + t * p.q_row + head * p.q_head + piece * 16;
  if (p.q_aligned) return *reinterpret_cast<const uint4*>(from);
  std::uint8_t bytes[16];
#pragma unroll
  for (int byte = 0; byte < 16; ++byte) bytes[byte] = from[byte];
  return make_uint4(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<unsigned>(bytes[3]) << 24,
                    bytes[4] | bytes[5] << 8 | bytes[6] << 16 | static_cast<unsigned>(bytes[7]) << 24,
                    bytes[8] | bytes[9] << 8 | bytes[10] << 16 | static_cast<unsigned>(bytes[11]) << 24,
                    bytes[12] | bytes[13] << 8 | bytes[14] << 16 | static_cast<unsigned>(bytes[15]) << 24);
}

__device__ inline float weight_of(const Params& p, int t, int head) {
  return t < p.rows && head < p.heads ? p.weights[t * p.weight_row + head] : -0.0F;
}

__device__ inline float relu(float x) { return fmaxf(x, 0.0F); }  // FMNMX: NaN becomes +0, as in the served kernel

}  // namespace dosa::cuda
