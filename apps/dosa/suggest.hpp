// A word that means nothing, and the ones its writer may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dosa::app {

/// "did you mean a, b?" with at most three of `names`, the nearest first; "" where none is near.
[[nodiscard]] std::string did_you_mean(std::string_view word, std::span<const std::string> names);

}  // namespace dosa::app
