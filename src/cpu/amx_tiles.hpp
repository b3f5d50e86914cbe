// The processor's tiles, as amx_panels.hpp wants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// Palette 1: 8 tiles of up to 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

struct Tiles {
  /// Configures the tiles on demand and gives them back at the end. A configuration kept between calls would be
  /// cheaper, but nothing stops other code of the same thread from using tiles in between, and tile data in use makes
  /// every context switch save 8 KiB.
  class Session {
   public:
    Session() = default;
    ~Session() {
      if (rows_ != 0) __asm__ volatile("tilerelease");
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// `rows` rows of the first operand (tile 4) and the accumulators (0-3); the second operand always has 16.
    void use(int rows) {
      if (rows == rows_) return;
      TileConfig config;
      for (int t = 0; t < 8; ++t) {
        config.row_bytes[t] = 64;
        config.rows[t] = static_cast<std::uint8_t>(t <= 4 ? rows : 16);
      }
      __asm__ volatile("ldtilecfg %0" ::"m"(config));
      rows_ = rows;
    }

   private:
    int rows_ = 0;
  };

  template <int tile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile>
  static void load(const void* from, std::size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  static void store(void* to, std::size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
  }
  /// accumulator += rows x keys.
  template <int accumulator, int rows, int keys>
  static void multiply_add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(accumulator), "i"(rows), "i"(keys));
  }
  /// The same for bytes with signs, summed in 32 bits.
  template <int accumulator, int rows, int keys>
  static void multiply_add_bytes() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(accumulator), "i"(rows), "i"(keys));
  }
};

}  // namespace
}  // namespace dosa::cpu
