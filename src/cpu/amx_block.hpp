// Products of a block of up to 16 rows with a panel of 64 keys, in tiles: what forms of bf16 and of bytes share.
// Unnamed namespace: see panel_kernels.hpp.
#pragma once

#include <cstddef>

#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

/// Panel: [chunk][4 blocks of 16 keys][16 rows of 64 bytes], a chunk being 32 dimensions of bf16 or 64 of bytes. Rows
/// of a block: [chunk][row][64 bytes]. Sums: [row][64 keys] of four bytes.
template <class Tiles, bool bytes>
struct TileBlock {
  static constexpr int chunk_bytes = 4096;
  static constexpr std::size_t sum_stride = 64 * 4;

  template <int tile>
  static inline void store_and_clear(std::byte* previous) {
    if (previous != nullptr) Tiles::template store<tile>(previous + 64 * tile, sum_stride);
    Tiles::template zero<tile>();
  }
  template <int sums, int keys>
  static inline void multiply() {
    if constexpr (bytes) {
      Tiles::template multiply_add_bytes<sums, 4, keys>();
    } else {
      Tiles::template multiply_add<sums, 4, keys>();
    }
  }

  static inline void load_rows(const std::byte* rows) { Tiles::template load<4>(rows, 64); }

  /// The product of the loaded rows with 16 keys of a chunk, into accumulator (tile) `group`; tiles 5 and 6 take the
  /// keys in turn. The first chunk stores what the accumulator still holds of the block before just before it needs it:
  /// at the end of that block the stores would wait for its last products with nothing to do meanwhile.
  template <int group, bool first>
  [[gnu::always_inline]] static void product(const std::byte* chunk, std::byte* previous) {
    constexpr int keys = 5 + group % 2;
    Tiles::template load<keys>(chunk + 1024 * group, 64);
    if constexpr (first) store_and_clear<group>(previous);
    multiply<group, keys>();
  }

  template <bool first>
  [[gnu::always_inline]] static void chunk(const std::byte* rows, const std::byte* key, std::byte* previous) {
    load_rows(rows);
    product<0, first>(key, previous);
    product<1, first>(key, previous);
    product<2, first>(key, previous);
    product<3, first>(key, previous);
  }

  static void store(std::byte* sums) {
    Tiles::template store<0>(sums, sum_stride);
    Tiles::template store<1>(sums + 64, sum_stride);
    Tiles::template store<2>(sums + 128, sum_stride);
    Tiles::template store<3>(sums + 192, sum_stride);
  }
};

}  // namespace
}  // namespace dosa::cpu
