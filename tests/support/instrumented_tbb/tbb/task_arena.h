#pragma once

#include "tbb/parallel_for.h"

namespace tbb {

class task_arena {
 public:
  explicit task_arena(int threads) : threads_(threads) {}
  template <class Body>
  auto execute(const Body& body) {
    struct Restore {
      instrumented::Place saved = instrumented::place();
      ~Restore() { instrumented::place() = saved; }
    } const restore;
    instrumented::place() = {0, threads_, false};
    return body();
  }

 private:
  int threads_;
};

namespace this_task_arena {
inline int current_thread_index() { return instrumented::place().index; }
}  // namespace this_task_arena

}  // namespace tbb
