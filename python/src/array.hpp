// Somebody's array, seen without a copy: exchange table, buffer protocol or DLPack, whichever the object speaks.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "dosa/tensor.hpp"
#include "dosa/types.hpp"

namespace dosa::python {

namespace nb = nanobind;

/// A wrong dtype, or an object that is no array: bad input that Python also calls a TypeError.
class TypeMismatch : public Error {
 public:
  explicit TypeMismatch(const std::string& message) : Error(ErrorKind::bad_input, message) {}
};

/// Up to four axes, strides in elements. Keeps alive what the view points into.
class Array {
 public:
  static constexpr int kMaxRank = 4;

  Array() = default;  ///< absent
  /// `name` is the argument's, for messages. `stream` (device arrays alone) is passed to the producer's `__dlpack__`.
  /// Throws TypeMismatch for objects that are no arrays, Error{bad_input} for arrays that cannot be viewed.
  Array(nb::handle object, const char* name, const nb::object& stream);

  [[nodiscard]] bool absent() const noexcept { return rank_ < 0; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t extent(int axis) const noexcept { return shape_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] std::int64_t stride(int axis) const noexcept { return strides_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The framework's stream for this device; null where it has none or was not asked.
  [[nodiscard]] void* stream() const noexcept { return stream_; }
  [[nodiscard]] std::string found() const;  ///< "float32 [4, 8]"

  /// The array as codes, scores or indices. `wanted` completes the message: "float32 [Q,H]".
  template <class T, std::size_t Rank>
  [[nodiscard]] TensorView<const T, Rank> input(const char* wanted) const {
    return view<const T, Rank>(wanted);
  }
  /// Additionally: writable, and no element reachable by two positions.
  template <class T, std::size_t Rank>
  [[nodiscard]] TensorView<T, Rank> output(const char* wanted) const {
    check_output();
    return view<T, Rank>(wanted);
  }

  /// Contiguous runs of bytes [first, last) that hold the elements, in no order; the inner axes make one where they
  /// can.
  [[nodiscard]] std::vector<std::pair<std::uintptr_t, std::uintptr_t>> runs() const;
  /// The smallest [first, last) that holds all elements; empty where there are none.
  [[nodiscard]] std::pair<std::uintptr_t, std::uintptr_t> range() const noexcept;

  [[noreturn]] void mismatch(const char* wanted) const;

 private:
  bool read_buffer(nb::handle object);  ///< false with a Python error set: no buffer

  void read_capsule(nb::handle capsule);
  void read_tensor(const dlpack::Tensor& tensor);
  bool read_exchange(nb::handle object, bool ask_stream);
  void check_output() const;
  [[nodiscard]] bool holds(dlpack::TypeCode code, int bits) const noexcept {
    return dtype_.code == code && dtype_.bits == bits && dtype_.lanes == 1;
  }
  template <class T>
  [[nodiscard]] bool holds() const noexcept;

  template <class T, std::size_t Rank>
  [[nodiscard]] TensorView<T, Rank> view(const char* wanted) const {
    if (rank_ != static_cast<int>(Rank) || !holds<std::remove_const_t<T>>()) mismatch(wanted);
    TensorView<T, Rank> result;
    result.data = static_cast<T*>(data_);
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      result.shape[axis] = shape_[axis];
      result.strides[axis] = strides_[axis];
    }
    result.device = device_;
    return result;
  }

  std::string name_;
  void* data_ = nullptr;
  int rank_ = -1;
  std::array<std::int64_t, kMaxRank> shape_{}, strides_{};
  dlpack::DataType dtype_{};
  std::string format_;  ///< of a buffer, where it names no dtype that DLPack knows
  Device device_{};
  bool read_only_ = false;
  void* stream_ = nullptr;
  nb::object owner_;
  std::shared_ptr<Py_buffer> buffer_;
};

template <>
inline bool Array::holds<std::uint8_t>() const noexcept {
  return holds(dlpack::kUInt, 8) || holds(dlpack::kFloat8E4m3fn, 8);
}
template <>
inline bool Array::holds<std::int32_t>() const noexcept {
  return holds(dlpack::kInt, 32);
}
template <>
inline bool Array::holds<float>() const noexcept {
  return holds(dlpack::kFloat, 32);
}

}  // namespace dosa::python
