// Programmatic dependent launches: a kernel may start while the one before it in the stream still runs.
#pragma once

namespace dosa::cuda::ptx {

/// Waits until the launches before this one have ended and what they wrote can be read. Every thread of every kernel of
/// a chain calls it, so that "the launch before has ended" says the same of all earlier ones.
__device__ inline void wait_for_launches_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// The next launch of the stream may start as soon as there is room for it.
__device__ inline void let_next_launch_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace dosa::cuda::ptx
