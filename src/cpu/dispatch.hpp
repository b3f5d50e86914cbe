// The one place that chooses an instruction set.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels.hpp"
#include "dosa/plan.hpp"

namespace dosa::cpu {

struct Choice {
  const Kernels* kernels;
  std::string why;  ///< what was chosen, by what, what it offers, and what stood in the way of something better
  std::string by;   ///< "asked for", "DOSA_ISA" or "the best available"
};

/// Every instruction set, the fastest first on a processor of this name. Intel's cores take two cycles for what AMD's
/// Zen 4 and later take one for (VDPBF16PS): there, F32 products are faster (bench/results/amx-emerald-rapids-*.md).
[[nodiscard]] std::span<const Isa> best_first(std::string_view processor);

/// `asked` automatic: DOSA_ISA from the environment if set, else the best available. Throws Error{not_available} naming
/// what the processor or the kernel lacks; never falls back.
[[nodiscard]] Choice choose(Isa asked);
[[nodiscard]] std::vector<IsaInfo> available_isas();
[[nodiscard]] std::string processor_name();

/// Serves as Isa::amx where it is not null (the default): tests run whole selections over emulated tiles by it, on
/// machines that have none. Set it only while no run is under way.
extern std::atomic<const Kernels*> tiles_stand_in;

}  // namespace dosa::cpu
