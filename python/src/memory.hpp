// Workspace and carry: bytes that a caller keeps between calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "arguments.hpp"
#include "array.hpp"
#include "contract/text.hpp"

namespace dosa::python {

/// Host bytes, left uninitialised: pages that no call touches cost nothing.
class Memory {
 public:
  explicit Memory(nb::handle bytes) : Memory(integer(bytes, "nbytes")) {}
  explicit Memory(std::int64_t bytes) : size_(checked(bytes)), data_(allocated(size_)) {}
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {data_.get(), size_}; }

  [[nodiscard]] bool try_take() noexcept { return !busy_.test_and_set(std::memory_order_acquire); }
  void give_back() noexcept { busy_.clear(std::memory_order_release); }

 private:
  static std::size_t checked(std::int64_t bytes) {
    if (bytes < 0) throw Error(ErrorKind::usage, text::format("nbytes: found {}, wanted 0 or more", bytes));
    return static_cast<std::size_t>(bytes);
  }
  static std::unique_ptr<std::byte[]> allocated(std::size_t bytes) {
    try {
      return std::make_unique_for_overwrite<std::byte[]>(bytes);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, text::format("found no memory for {} bytes of workspace", bytes).c_str());
      throw nb::python_error();
    }
  }
  std::size_t size_;
  std::unique_ptr<std::byte[]> data_;
  std::atomic_flag busy_;
};

/// Bytes of a Memory or of a writable uint8 array, for the length of one call. A Memory serves one call at a time.
class BorrowedBytes {
 public:
  BorrowedBytes() = default;
  BorrowedBytes(nb::handle object, const char* name, const nb::object& stream) {
    if (object.is_none()) return;
    if (nb::isinstance<Memory>(object)) {
      auto* memory = nb::cast<Memory*>(object);
      if (!memory->try_take())
        throw Error(ErrorKind::usage,
                    text::format("{}: another call is using it, wanted one for each call at a time", name));
      memory_ = memory;
      owner_ = nb::borrow(object);
      bytes_ = memory->bytes();
      return;
    }
    array_ = Array(object, name, stream);
    const auto view = array_.output<std::uint8_t, 1>("dosa.Memory or uint8 [bytes]");
    if (view.shape[0] > 1 && view.strides[0] != 1) array_.mismatch("uint8 [bytes] without gaps");
    bytes_ = {reinterpret_cast<std::byte*>(view.data), static_cast<std::size_t>(view.shape[0])};
  }
  BorrowedBytes(const BorrowedBytes&) = delete;
  BorrowedBytes& operator=(const BorrowedBytes&) = delete;
  ~BorrowedBytes() {
    if (memory_ != nullptr) memory_->give_back();
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] const Array& array() const noexcept { return array_; }  ///< absent for a Memory
  [[nodiscard]] Device device() const noexcept { return array_.device(); }
  [[nodiscard]] bool absent() const noexcept { return bytes_.data() == nullptr && memory_ == nullptr; }

 private:
  Memory* memory_ = nullptr;
  nb::object owner_;
  Array array_;
  std::span<std::byte> bytes_;
};

}  // namespace dosa::python
