// Where one launch serves few rows: decided from shapes alone.
#pragma once

#include <cstddef>

#include "cuda/few.cuh"
#include "dosa/plan.hpp"

namespace dosa::cuda {

/// `bytes`: of the workspace so far; grows by what the path needs. `grid`, `most_passes`: blocks and launches at most.
FewLayout few_layout(const Shape& shape, const Options& options, int grid, int most_passes, std::size_t& bytes);

}  // namespace dosa::cuda
