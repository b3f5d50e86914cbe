#pragma once

#include "tbb/parallel_for.h"

namespace tbb::info {
inline int default_concurrency() { return instrumented::processors(); }
}  // namespace tbb::info
