// Does this process still have the threads of its pool?
#pragma once

namespace dosa::cpu {

/// True in a process that was forked after a call had used the thread pool. A child inherits oneTBB's state, locks that
/// its workers held included, but not the workers: a call then runs on its own thread and leaves oneTBB alone. Calls
/// note by this very question that the pool is about to be used.
[[nodiscard]] bool pool_was_lost() noexcept;

}  // namespace dosa::cpu
