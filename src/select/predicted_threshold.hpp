// Where the threshold of a row will probably lie, from a sample of its scores. Nothing here is a proof: what is left
// out because of a prediction is looked at again where the threshold proves to be lower (T9 d of docs/certificate.md).
#pragma once

#include <span>

namespace dosa {

struct SampledScore {
  float score;   ///< about the key's score; not NaN
  float weight;  ///< keys that it stands for
};

/// The largest score that, as the sample has it, at least `wanted` keys reach, with room for the sample's noise; -inf
/// where the sample is too small to say. Reorders the sample.
[[nodiscard]] float predicted_threshold(std::span<SampledScore> sample, double wanted) noexcept;

}  // namespace dosa
