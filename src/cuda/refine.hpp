// Scores and selection over a sparse set of (row, key) pairs: what a screen leaves of a problem. Internal, for device
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dosa/plan.hpp"

namespace dosa::cuda {

/// A set of (row, key) pairs in device memory, a bit each: bit j (value 2^j) of 32-bit word i of a row is key 32 i + j
/// of the view (a shard's first key is key 0, a request's first key with paged keys). Row t begins at words + t *
/// row_words. Bits past the last key may be anything.
struct PairMask {
  const std::uint32_t* words = nullptr;  ///< at a multiple of 16 bytes
  std::int64_t row_words = 0;            ///< a multiple of 4: 0 (one set for all rows), or mask_words(keys) or more
};
/// Words of a row's mask: whole pieces of 16 bytes.
[[nodiscard]] constexpr std::int64_t mask_words(std::int64_t keys) noexcept { return (keys + 127) / 128 * 4; }

/// Device memory that one call takes, in bytes. A function of the plan alone.
[[nodiscard]] std::size_t refine_workspace_bytes(const Plan& plan);

/// The plan's selection where of all keys that compete in a row only those of `pairs` exist: forced keys are returned
/// whether their bits are set or not, bits outside a row's window mean nothing, scores are the served ones, ties go by
/// index. The result depends on the set alone. Where every key that may belong to a row's Top-K is in `pairs`, it is
/// the Top-K. Pages that do not exist: those of the pairs and of the forced keys are looked at, and their keys are not
/// selectable (DeviceCounters::status, bit 1).
///
/// Queued on `stream` (a cudaStream_t): no allocation, no synchronisation, may be captured and replayed with other
/// masks, windows and values. `plan`: of backend cuda, for device tensors. `workspace`: refine_workspace_bytes(plan)
/// bytes, not shared with a call that may still be going on; it begins with DeviceCounters, at the next multiple of 256
/// (stages_plain counts tiles of up to 64 pairs). Throws Error{bad_input} for a plan, shapes, strides and addresses
/// that do not fit, {internal} where CUDA refuses a launch.
void refine_on_stream(const Plan& plan, const Problem& problem, const PairMask& pairs, const Selection& selection,
                      void* workspace, std::size_t workspace_bytes, void* stream);

/// Scores of the pairs that lie in their rows' windows, forced keys included, into `out` (F32 [Q,N], any strides,
/// device memory); the other elements stay as they are. A NaN, and the score of a key whose page does not exist, is
/// written as 0x7fffffff. Otherwise as refine_on_stream.
void refine_scores_on_stream(const Plan& plan, const Problem& problem, const PairMask& pairs, TensorView<float, 2> out,
                             void* workspace, std::size_t workspace_bytes, void* stream);

}  // namespace dosa::cuda
