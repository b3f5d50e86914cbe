// What a caller keeps between calls: likely winners of each request (carried seeds). Opaque to the caller and never
// trusted: whatever the bytes say, a call's result is the same; only its speed may differ.
//
// Two banks: a run reads the one and writes the other, so that no row sees what the run itself left there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dosa/plan.hpp"

namespace dosa {

class SeedCarry {
 public:
  [[nodiscard]] static std::size_t bytes(const Shape& shape, std::int64_t capacity) noexcept;

  /// An empty `memory` is no carry. Bytes that are not a carry of this shape read as an empty one.
  SeedCarry(std::span<std::byte> memory, const Shape& shape, std::int64_t capacity) noexcept;

  /// Copies the carried seeds of a request that lie in 0..keys-1 to `seeds` (room: capacity), ascending and distinct.
  [[nodiscard]] std::int64_t read(std::int64_t request, std::int64_t keys, std::int32_t* seeds) const noexcept;
  /// Leaves seeds for the next call. At most one writer a request.
  void write(std::int64_t request, std::span<const std::int32_t> seeds) noexcept;
  /// Makes what was written the next call's seeds; requests not written keep none.
  void finish() noexcept;

 private:
  struct Header {
    std::uint64_t magic;
    std::int64_t requests, capacity;
    std::uint64_t bank;
  };
  [[nodiscard]] std::byte* block(std::uint64_t bank, std::int64_t request) const noexcept;

  std::span<std::byte> memory_;
  Header header_{};
  bool usable_ = false;  ///< what was there before this run may be read
};

}  // namespace dosa
