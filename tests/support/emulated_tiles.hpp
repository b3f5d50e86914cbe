// Emulated tiles as Isa::amx, on machines without AMX too.
#pragma once

#include <algorithm>

#include "cpu/amx_emulated.hpp"
#include "cpu/dispatch.hpp"
#include "support/parity.hpp"

namespace dosa::test {

/// While it lives, Isa::amx is the emulation, where usable().
class EmulatedTiles {
 public:
  static constexpr const char* kWhyNot = "no AVX-512, in which the rest of these kernels is written";

  EmulatedTiles() {
    const std::vector<Isa> isas = runnable_isas();
    usable_ = std::find(isas.begin(), isas.end(), Isa::avx512) != isas.end();
    if (usable_) cpu::tiles_stand_in = cpu::amx_emulated_kernels();
  }
  ~EmulatedTiles() { cpu::tiles_stand_in = nullptr; }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  [[nodiscard]] bool usable() const noexcept { return usable_; }

 private:
  bool usable_ = false;
};

}  // namespace dosa::test
