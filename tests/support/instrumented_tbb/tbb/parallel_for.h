// The part of oneTBB that dosa uses, over std::thread, for ThreadSanitizer alone: the distribution's libtbb is not
// instrumented, so its own synchronisation is invisible and every task would look like a race. Here thread creation,
// join and one atomic counter order the work, and what remains to be reported is ours.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tbb {

struct simple_partitioner {};

namespace instrumented {

struct Place {
  int index = 0;    ///< of this thread in its arena
  int threads = 0;  ///< of the arena; 0: none was entered
  bool nested = false;
};
inline Place& place() {
  static thread_local Place here;
  return here;
}
inline int processors() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace instrumented

template <class Index, class Body>
void parallel_for(Index first, Index last, const Body& body) {
  const instrumented::Place caller = instrumented::place();
  const int threads = caller.threads == 0 ? instrumented::processors() : caller.threads;
  if (caller.nested || threads == 1 || last - first < Index{2}) {
    for (Index i = first; i < last; ++i) body(i);
    return;
  }
  std::atomic<Index> next{first};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](int index) {
    const instrumented::Place saved = instrumented::place();
    instrumented::place() = {index, threads, true};
    try {
      for (Index i = next++; i < last; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
    instrumented::place() = saved;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

template <class Index, class Body>
void parallel_for(Index first, Index last, const Body& body, const simple_partitioner&) {
  parallel_for(first, last, body);
}

}  // namespace tbb
