// Keys of a call as narrow forms want them, packed once for all its tiles of rows, by whoever needs a panel first.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "contract/key_source.hpp"
#include "cpu/arena.hpp"
#include "cpu/layout.hpp"

namespace dosa::cpu {

/// The number of panels is layout.packed_panels; none: nothing is kept.
class PackedKeys {
 public:
  PackedKeys() = default;
  /// Cuts its memory. Panels begin at key `origin` and at every panel_keys-th key from there.
  PackedKeys(Arena& arena, const Layout& layout) noexcept;
  void start(std::int64_t origin) noexcept;

  /// Keys first .. first + count - 1, packed now or earlier; false where they are not kept, or another thread is at it:
  /// waiting for it would cost as much as packing them elsewhere. Kept are whole panels: of a panel that a tile's keys
  /// end in, the rest may not be there to be read.
  [[nodiscard]] bool find(const KeySource& keys, std::int64_t first, int count, Panel& panel);

  /// Memory of up to `panels` panels from key `first` on, as many as are packed already.
  [[nodiscard]] std::span<const std::byte> packed_from(std::int64_t first, int panels) const noexcept;

 private:
  enum State : std::uint8_t { empty, begun, there };

  const Layout* layout_ = nullptr;
  std::byte* memory_ = nullptr;
  std::atomic<std::uint8_t>* states_ = nullptr;
  std::int64_t origin_ = 0;
};

}  // namespace dosa::cpu
