#include "cpu/forked.hpp"

#if __has_include(<pthread.h>)
#include <pthread.h>

#include <atomic>

namespace dosa::cpu {
namespace {

std::atomic<bool> pool_used{false}, pool_lost{false};

// At load, not at the first call: a fork during that call must find the handler. Without memory for it (ENOMEM) a fork
// stays what oneTBB makes of it.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  if (pool_used.load(std::memory_order_relaxed)) pool_lost.store(true, std::memory_order_relaxed);
});

}  // namespace

bool pool_was_lost() noexcept {
  pool_used.store(true, std::memory_order_relaxed);
  return pool_lost.load(std::memory_order_relaxed);
}

}  // namespace dosa::cpu
#else
bool dosa::cpu::pool_was_lost() noexcept { return false; }
#endif
