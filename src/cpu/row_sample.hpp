// A sample of one row's keys: what the certificate is chosen by, and where the threshold is expected.
#pragma once

#include "certificate/dosa_bound.hpp"
#include "cpu/row_work.hpp"

namespace dosa::cpu {

/// Seeds that lie in the row's window.
[[nodiscard]] std::span<const std::int32_t> visible_seeds(const TileContext& tile, const RowWork& work);

/// Stratified positions with a fixed hash as jitter: no period of the text can hide from it, and every run takes the
/// same.
void random_keys(const Window& window, std::int64_t count, std::uint64_t hash, std::int32_t* keys);
inline constexpr std::uint64_t kSampleHash = 0x9e3779b97f4a7c15U, kMoreKeysHash = 0xd1b54a32d192ed03U;

/// Chooses keys: likely winners first, then random ones. Which they are lives in `thread` until its next sample.
[[nodiscard]] certificate::Sample choose_sample(const TileContext& tile, ThreadMemory& thread, const RowWork& work);
/// All head dots of the chosen keys.
void measure_sample(const TileContext& tile, ThreadMemory& thread, RowWork& work, certificate::Sample& sample);

/// The row's threshold as the sample (this thread's last; measured or not) and, for long windows, further random keys
/// have it. Uses the row's slabs as scratch.
[[nodiscard]] float predict_threshold(const TileContext& tile, ThreadMemory& thread, RowWork& work,
                                      const certificate::Sample& sample);

/// Bounds of keys[0..count) in the dense form.
void refine(const TileContext& tile, ThreadMemory& thread, RowWork& work, const std::int32_t* keys, std::int64_t count,
            float* lower, float* upper);

}  // namespace dosa::cpu
