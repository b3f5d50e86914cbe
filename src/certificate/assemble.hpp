// A row's bound in real arithmetic with everything that make_form needs: the seam where tests drop one term at a time.
#pragma once

#include <cstddef>
#include <span>

#include "certificate/dosa_bound.hpp"
#include "certificate/form.hpp"

namespace dosa::certificate {

/// Pointers lie in the scratch. Where choice.finite is false only facts and values are set.
struct Assembly {
  Choice choice;
  ModelError model;
  RowFacts* facts = nullptr;
  float* values = nullptr;  ///< [H][D]
  RealBound* bound = nullptr;
};
[[nodiscard]] Assembly assemble(const RowInput& input, std::span<std::byte> scratch);

}  // namespace dosa::certificate
