// The right to use tile registers: Linux grants the 8 KiB of tile data to a process only on request.
#pragma once

namespace dosa::cpu {

/// Asks the kernel, once per process, for the right to use tile data in every thread. True where it was granted. False
/// where the kernel is too old, forbids it, or is not Linux on x86-64. Must not be called unless XCR0 says that the
/// operating system saves tile state.
[[nodiscard]] bool request_amx_permission() noexcept;

}  // namespace dosa::cpu
