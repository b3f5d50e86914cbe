// Launches of the small kernels around the scorer.
#pragma once

#include <cuda_runtime.h>

#include "cuda/params.hpp"

namespace dosa::cuda {

/// Rows whose keys were split over the chip: p.thresholds from the samples in p.buffers (`p` as the sampling launch had
/// it).
cudaError_t launch_thresholds(const Params& p, cudaStream_t stream);
/// Selection of every row from the candidates of its chunks. `p.mode` stream: rows whose predicted threshold was too
/// high are marked in p.repeats and left; repeat: only those rows.
cudaError_t launch_merge(const Params& p, cudaStream_t stream);
/// -inf everywhere: keys outside a row's window keep it.
cudaError_t launch_fill_matrix(const Params& p, cudaStream_t stream);

}  // namespace dosa::cuda
