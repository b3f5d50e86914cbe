// dosa: exact Top-K selection for the lightning indexer of DeepSeek Sparse Attention.
#pragma once

#include "dosa/cuda.hpp"     // IWYU pragma: export
#include "dosa/merge.hpp"    // IWYU pragma: export
#include "dosa/plan.hpp"     // IWYU pragma: export
#include "dosa/problem.hpp"  // IWYU pragma: export
#include "dosa/tensor.hpp"   // IWYU pragma: export
#include "dosa/trace.hpp"    // IWYU pragma: export
#include "dosa/types.hpp"    // IWYU pragma: export
