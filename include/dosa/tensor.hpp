// A view of somebody else's memory: pointer, shape, strides in elements, device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dosa/export.hpp"

namespace dosa DOSA_PUBLIC {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// View of a tensor of `Rank` axes. Strides are 64-bit, in elements, and may be 0 (a broadcast) on inputs.
/// E4M3 tensors are views of std::uint8_t codes.
template <class T, std::size_t Rank>
struct TensorView {
  T* data = nullptr;
  std::array<std::int64_t, Rank> shape{};
  std::array<std::int64_t, Rank> strides{};
  Device device{};

  /// Row-major view without gaps.
  [[nodiscard]] static TensorView contiguous(T* data, std::array<std::int64_t, Rank> shape, Device device = {}) {
    TensorView view{data, shape, {}, device};
    std::int64_t stride = 1;
    for (std::size_t axis = Rank; axis-- > 0;) {
      view.strides[axis] = stride;
      stride *= shape[axis];
    }
    return view;
  }

  template <class... Index>
  [[nodiscard]] T* at(Index... index) const {
    static_assert(sizeof...(Index) <= Rank);
    const std::array<std::int64_t, sizeof...(Index)> position{static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < position.size(); ++axis) offset += position[axis] * strides[axis];
    return data + offset;
  }

  [[nodiscard]] bool absent() const noexcept { return data == nullptr; }
};

}  // namespace DOSA_PUBLIC
