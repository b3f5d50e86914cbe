// Turns bytes into choices; past the end every choice is 0, so that any input is a valid one.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace dosa::fuzz {

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool done() const { return at_ >= bytes_.size(); }
  std::uint8_t byte() { return at_ < bytes_.size() ? bytes_[at_++] : std::uint8_t{0}; }
  bool flag() { return (byte() & 1U) != 0; }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = (value << 8U) | byte();
    return value;
  }
  /// 0 .. bound-1, from two bytes.
  std::int64_t below(std::int64_t bound) {
    const std::int64_t value = std::int64_t{byte()} * 256 + byte();
    return value % bound;
  }
  float real() {
    const std::uint32_t bits = word();
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace dosa::fuzz
