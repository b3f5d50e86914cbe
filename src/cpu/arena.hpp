// Cutting caller-provided memory into aligned pieces; the same cuts measure the size when the base is null.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dosa::cpu {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  // a cache line and a 512-bit register

  /// Starts at the first aligned byte of `base`; a null base only counts.
  explicit Arena(std::byte* base = nullptr) noexcept : base_(base) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(base) % kAlignment;
    used_ = base == nullptr || misaligned == 0 ? 0 : kAlignment - misaligned;
  }

  template <class T>
  T* take(std::int64_t count) noexcept {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + used_;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(piece);
  }

  /// Bytes to ask for, room for aligning an arbitrary base included.
  [[nodiscard]] std::size_t wanted_bytes() const noexcept { return used_ + kAlignment; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace dosa::cpu
