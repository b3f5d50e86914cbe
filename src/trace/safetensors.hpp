// The safetensors container: 8 bytes of header length (little endian), a JSON object, raw tensor bytes.
// One strict reader and one atomic writer for traces and results alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/output_file.hpp"

namespace dosa::safetensors {

/// Header bytes that are still parsed; the format's own limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct Tensor {
  std::string name;
  std::string dtype;                ///< as written: "F32", "I32", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  ///< sizes >= 0
  std::span<const std::byte> data;  ///< inside the file; any alignment
};

/// One wanted axis: a fixed size, or a name whose size is reported back.
struct Axis {
  const char* name;
  std::int64_t size = -1;  ///< -1: any
};

/// "F32 [4,8]".
[[nodiscard]] std::string describe(const Tensor& tensor);

/// A validated file: every tensor's range lies in the file, agrees with dtype and shape and overlaps no other; as the
/// format demands, the ranges leave no byte of the file out.
class File {
 public:
  /// Throws Error{io} where the file cannot be mapped and Error{bad_input} where it is not a sound safetensors file.
  [[nodiscard]] static File open(const std::filesystem::path& path);
  /// The same over bytes that outlive the object; `name` begins every message.
  [[nodiscard]] static File from_bytes(std::span<const std::byte> bytes, const std::string& name);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept {
    return tensors_;
  }  ///< in the order of the header
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const Tensor* find(std::string_view tensor) const noexcept;

  /// The tensor of that name, dtype and shape. Throws Error{bad_input} naming tensor, found and wanted.
  [[nodiscard]] const Tensor& require(std::string_view tensor, std::string_view dtype,
                                      std::span<const Axis> axes) const;
  [[nodiscard]] const Tensor& require(std::string_view tensor, std::string_view dtype,
                                      std::initializer_list<Axis> axes) const {
    return require(tensor, dtype, std::span<const Axis>(axes.begin(), axes.size()));
  }

  /// The tensor's elements, straight from the file where it aligns them for T, else from a copy. `owners` receives what
  /// must stay alive: the mapping, the copy. Never a null pointer, an empty tensor included.
  template <class T>
  [[nodiscard]] const T* data(const Tensor& tensor, std::vector<std::shared_ptr<const void>>& owners) const {
    return static_cast<const T*>(aligned(tensor, alignof(T), owners));
  }

 private:
  [[nodiscard]] const void* aligned(const Tensor& tensor, std::size_t alignment,
                                    std::vector<std::shared_ptr<const void>>& owners) const;

  std::string name_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const void> mapping_;
};

/// What a file will hold. Sizes only: bytes follow.
struct Spec {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Writes one file in a single pass: the header at once, then each tensor's bytes in the order of the specs, in pieces
/// of any size. Tensors of wide elements should come first: the data start is a multiple of 64 and nothing pads between
/// tensors.
class Writer {
 public:
  /// Throws Error{io}; Error{internal} for an unknown dtype or sizes that overflow.
  Writer(const std::filesystem::path& path, std::vector<Spec> specs,
         const std::map<std::string, std::string>& metadata = {});
  template <class T>
  void append(std::span<const T> values) {
    append_bytes(std::as_bytes(values));
  }
  /// Renames the file to its name. Throws Error{internal} unless exactly the promised bytes were appended.
  void commit();

 private:
  void append_bytes(std::span<const std::byte> bytes);
  OutputFile file_;
  std::uint64_t wanted_ = 0, written_ = 0;
};

}  // namespace dosa::safetensors
