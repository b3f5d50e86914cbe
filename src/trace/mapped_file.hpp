// A whole file as read-only bytes, without a copy.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace dosa {

/// Private read-only mapping. A file that shrinks while it is mapped raises SIGBUS in whoever reads it, as with any
/// mapping.
class MappedFile {
 public:
  /// Throws Error{io} where the path cannot be opened or is not a regular file. An empty file gives an empty span.
  [[nodiscard]] static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  MappedFile(void* data, std::size_t size) : data_(data), size_(size) {}
  void* data_;
  std::size_t size_;
};

}  // namespace dosa
