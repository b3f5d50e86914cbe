// Decisions of a plan for the CUDA backend: which kernel, how the keys are split, where things lie in the workspace. A
// pure function of shape, options and the number of SMs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/few.cuh"
#include "cuda/kernels.hpp"
#include "dosa/plan.hpp"

namespace dosa::cuda {

constexpr std::int64_t kMaxTopK = 4096;

/// What tests may force, to show that the result does not depend on it. 0 and -1: the plan's own choice.
struct Tuning {
  int chunks = 0;             ///< pieces of every block's keys (1: fused)
  int sample_keys = -1;       ///< 0: no predicted thresholds
  int rows_together = 0;      ///< which kernel
  int grid = 0;               ///< blocks in flight
  bool plain_loader = false;  ///< ordinary copies even where TMA could
  int few = -1;               ///< one launch for few rows: 1 wherever it can, 0 never; -1: one pass will do, no chunks
};
Tuning& tuning() noexcept;  ///< of this thread; read by plan and run alike

struct Layout {
  Kernel kernel;
  int blocks = 0;         ///< blocks of rows
  int chunks = 1;         ///< pieces of keys in the stream launch; 1: fused
  int sample_chunks = 0;  ///< pieces of the sample in the sampling launch; 0: none
  int grid = 0;
  std::int32_t capacity = 0, sample_keys = 0;
  FewLayout few;  ///< instead of all the above, where it applies
  std::size_t counters = 0, buffers = 0, counts = 0, ranks = 0, thresholds = 0, repeats = 0, bytes = 0;  ///< offsets
};

Layout layout_of(const Shape& shape, const Options& options, int multiprocessors);

}  // namespace dosa::cuda
