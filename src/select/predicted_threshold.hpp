// Where the threshold of a row will probably lie, from a sample of its scores. Nothing here is a proof: what is left
// out because of a prediction is looked at again where the threshold proves to be lower (T9 d of docs/certificate.md).
#pragma once

#include <span>

#include "cpu/kernels.hpp"

namespace dosa {

struct Stratum {
  std::span<const float> scores;  ///< about the keys' scores; finite
  float weight;                   ///< keys that each stands for
};

/// A sampled score that, as the sample has it, at least `wanted` keys reach, with room for the sample's noise, while
/// fewer are sure to exceed it; -inf where the sample is too small to say.
[[nodiscard]] float predicted_threshold(const cpu::Kernels& kernels, std::span<const Stratum> sample,
                                        double wanted) noexcept;

}  // namespace dosa
