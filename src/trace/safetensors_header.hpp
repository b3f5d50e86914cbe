// The JSON header alone, before it is compared with the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dosa::safetensors {

struct HeaderTensor {
  std::string name, dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< data_offsets
};

struct Header {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Throws Error{bad_input}; messages begin with `file`.
[[nodiscard]] Header parse_header(std::string_view text, const std::string& file);

/// Bits an element takes; 0 for a dtype this reader does not know.
[[nodiscard]] unsigned element_bits(std::string_view dtype) noexcept;

/// Bytes of a tensor; false where the number overflows 63 bits or ends inside a byte.
[[nodiscard]] bool tensor_bytes(const std::vector<std::uint64_t>& shape, unsigned bits, std::uint64_t& bytes) noexcept;

}  // namespace dosa::safetensors
