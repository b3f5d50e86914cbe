#include "cpu/peak.hpp"

#if defined(__AVX512F__)
#include "cpu/amx_tiles.hpp"

namespace dosa::cpu {

/// Six accumulators hide the latency of a tile product (52 cycles, one every 16).
double peak::amx(long rounds) noexcept {
  Tiles::Session session;
  session.use(16);
  alignas(64) static constexpr unsigned char kZeros[1024] = {};
  Tiles::zero<0>();
  Tiles::zero<1>();
  Tiles::zero<2>();
  Tiles::zero<3>();
  Tiles::zero<5>();
  Tiles::zero<7>();  // 16 rows: any tile can accumulate
  Tiles::load<4>(kZeros, 64);
  Tiles::load<6>(kZeros, 64);
  for (long i = 0; i < rounds; ++i) {
    Tiles::multiply_add<0, 4, 6>();
    Tiles::multiply_add<1, 4, 6>();
    Tiles::multiply_add<2, 4, 6>();
    Tiles::multiply_add<3, 4, 6>();
    Tiles::multiply_add<5, 4, 6>();
    Tiles::multiply_add<7, 4, 6>();
  }
  return static_cast<double>(rounds) * 6 * 16 * 16 * 32 * 2;
}

}  // namespace dosa::cpu
#else
double dosa::cpu::peak::amx(long) noexcept { return 0; }
#endif
