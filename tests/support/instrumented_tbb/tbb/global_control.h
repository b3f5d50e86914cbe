#pragma once

#include <cstddef>

namespace tbb {

/// Threads are as many as an arena asks for: there is no limit to lift.
class global_control {
 public:
  enum parameter { max_allowed_parallelism };
  global_control(parameter, std::size_t) {}
};

}  // namespace tbb
