// Likely winners for the next rows: positions voted for by the rows just selected.
#pragma once

#include <cstdint>
#include <span>

namespace dosa {

/// Distinct keys of `votes` (each row's winners, one after another; sorted in place), those with most votes first until
/// `room` are found, then ascending. Writes to `seeds` (room: `room`) and returns how many.
[[nodiscard]] std::int64_t elect_seeds(std::span<std::int32_t> votes, std::int64_t room, std::int32_t* seeds) noexcept;

}  // namespace dosa
