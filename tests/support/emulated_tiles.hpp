// Emulated tiles as Isa::amx, on machines without AMX too.
#pragma once

#include <algorithm>

#include "cpu/amx_emulated.hpp"
#include "cpu/dispatch.hpp"
#include "support/parity.hpp"

namespace dosa::test {

/// The emulation, or nullptr where the rest of its kernels cannot run.
inline const cpu::Kernels* emulated_tiles() {
  const std::vector<Isa> isas = runnable_isas();
  const bool runs = std::find(isas.begin(), isas.end(), Isa::avx512) != isas.end() &&
                    __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  return runs ? cpu::amx_emulated_kernels() : nullptr;
}

/// While it lives, Isa::amx is the emulation, where usable().
class EmulatedTiles {
 public:
  static constexpr const char* kWhyNot = "no AVX-512 with VBMI and VNNI, in which the rest of these kernels is written";

  EmulatedTiles() {
    cpu::tiles_stand_in = emulated_tiles();
    usable_ = cpu::tiles_stand_in != nullptr;
  }
  ~EmulatedTiles() { cpu::tiles_stand_in = nullptr; }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  [[nodiscard]] bool usable() const noexcept { return usable_; }

 private:
  bool usable_ = false;
};

}  // namespace dosa::test
