#include "select/carry.hpp"

#include <algorithm>
#include <cstring>

namespace dosa {
namespace {

constexpr std::uint64_t kMagic = 0x31796372'61736f64U;  // "dosarcy1"

std::size_t block_bytes(std::int64_t capacity) noexcept {
  return static_cast<std::size_t>(1 + capacity) * sizeof(std::int32_t);
}

}  // namespace

std::size_t SeedCarry::bytes(const Shape& shape, std::int64_t capacity) noexcept {
  return sizeof(Header) + 2 * static_cast<std::size_t>(shape.requests) * block_bytes(capacity);
}

SeedCarry::SeedCarry(std::span<std::byte> memory, const Shape& shape, std::int64_t capacity) noexcept
    : memory_(memory) {
  if (memory_.empty()) return;
  std::memcpy(&header_, memory_.data(), sizeof(Header));
  usable_ = header_.magic == kMagic && header_.requests == shape.requests && header_.capacity == capacity &&
            header_.bank <= 1;
  if (!usable_) header_ = {kMagic, shape.requests, capacity, 1};
  const std::int32_t none = 0;
  for (std::int64_t r = 0; r < shape.requests; ++r) std::memcpy(block(1 - header_.bank, r), &none, sizeof(none));
}

std::byte* SeedCarry::block(std::uint64_t bank, std::int64_t request) const noexcept {
  const auto place = bank * static_cast<std::uint64_t>(header_.requests) + static_cast<std::uint64_t>(request);
  return memory_.data() + sizeof(Header) + place * block_bytes(header_.capacity);
}

std::int64_t SeedCarry::read(std::int64_t request, std::int64_t keys, std::int32_t* seeds) const noexcept {
  if (memory_.empty() || !usable_) return 0;
  const std::byte* const from = block(header_.bank, request);
  std::int32_t found = 0;
  std::memcpy(&found, from, sizeof(found));
  const auto count = std::clamp<std::int64_t>(found, 0, header_.capacity);
  std::memcpy(seeds, from + sizeof(found), static_cast<std::size_t>(count) * sizeof(std::int32_t));
  const auto inside = std::remove_if(seeds, seeds + count, [&](std::int32_t key) { return key < 0 || key >= keys; });
  std::sort(seeds, inside);
  return std::unique(seeds, inside) - seeds;
}

void SeedCarry::write(std::int64_t request, std::span<const std::int32_t> seeds) noexcept {
  if (memory_.empty()) return;
  const auto count =
      static_cast<std::int32_t>(std::min<std::int64_t>(static_cast<std::int64_t>(seeds.size()), header_.capacity));
  std::byte* const to = block(1 - header_.bank, request);
  std::memcpy(to, &count, sizeof(count));
  std::memcpy(to + sizeof(count), seeds.data(), static_cast<std::size_t>(count) * sizeof(std::int32_t));
}

void SeedCarry::finish() noexcept {
  if (memory_.empty()) return;
  header_.bank = 1 - header_.bank;
  std::memcpy(memory_.data(), &header_, sizeof(Header));
}

}  // namespace dosa
