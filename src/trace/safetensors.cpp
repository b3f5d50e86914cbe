#include "trace/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "contract/text.hpp"
#include "dosa/types.hpp"
#include "trace/mapped_file.hpp"
#include "trace/safetensors_header.hpp"

namespace dosa::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little endian and are read in place");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kDataAlignment = 64;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::bad_input, text::format("{}: {}", file, what));
}

std::string shorten(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 77) + "..."; }

void check_range(const HeaderTensor& tensor, std::uint64_t data_bytes, const std::string& file) {
  const std::string name = shorten(tensor.name);
  if (tensor.begin > tensor.end) {
    refuse(file,
           text::format("tensor \"{}\": data_offsets [{}, {}] begin after they end", name, tensor.begin, tensor.end));
  }
  if (tensor.end > data_bytes) {
    refuse(file,
           text::format("tensor \"{}\": data_offsets [{}, {}] end past the file's {} data bytes (truncated file?)",
                        name, tensor.begin, tensor.end, data_bytes));
  }
  const unsigned bits = element_bits(tensor.dtype);
  if (bits == 0) return;  // a dtype of the future: whoever asks for this tensor will refuse it
  std::uint64_t bytes = 0;
  if (!tensor_bytes(tensor.shape, bits, bytes)) {
    refuse(file, text::format("tensor \"{}\": {} {} has no size in bytes (it overflows or ends inside a byte)", name,
                              tensor.dtype, text::format("[{}]", fmt::join(tensor.shape, ","))));
  }
  if (bytes != tensor.end - tensor.begin) {
    refuse(file, text::format("tensor \"{}\": found {} bytes at data_offsets [{}, {}], wanted {} for {} [{}]", name,
                              tensor.end - tensor.begin, tensor.begin, tensor.end, bytes, tensor.dtype,
                              fmt::join(tensor.shape, ",")));
  }
}

/// Ranges sorted by place must follow each other from the first data byte to the last.
void check_cover(const std::vector<HeaderTensor>& tensors, std::uint64_t data_bytes, const std::string& file) {
  std::vector<const HeaderTensor*> order;
  order.reserve(tensors.size());
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->begin != b->begin ? a->begin < b->begin : a->end < b->end; });
  std::uint64_t reached = 0;
  const HeaderTensor* previous = nullptr;
  for (const auto* tensor : order) {
    if (tensor->begin < reached) {
      refuse(file, text::format("tensors \"{}\" and \"{}\" overlap: data_offsets [{}, {}] and [{}, {}]",
                                shorten(previous->name), shorten(tensor->name), previous->begin, previous->end,
                                tensor->begin, tensor->end));
    }
    if (tensor->begin > reached) {
      refuse(file, text::format("data bytes {} to {} belong to no tensor (before \"{}\"); safetensors allows no holes",
                                reached, tensor->begin, shorten(tensor->name)));
    }
    reached = tensor->end;
    previous = tensor;
  }
  if (reached != data_bytes) {
    refuse(file, text::format("found {} data bytes, wanted the {} that the header describes", data_bytes, reached));
  }
}

std::string describe_wanted(std::string_view dtype, std::span<const Axis> axes) {
  std::string shape, sizes;
  for (const Axis& axis : axes) {
    shape += text::format("{}{}", shape.empty() ? "" : ",", axis.name);
    if (axis.size >= 0 && !(axis.name[0] >= '0' && axis.name[0] <= '9')) {
      sizes += text::format("{}{} = {}", sizes.empty() ? " with " : ", ", axis.name, axis.size);
    }
  }
  return text::format("{} [{}]{}", dtype, shape, sizes);
}

}  // namespace

std::string describe(const Tensor& tensor) {
  return text::format("{} [{}]", shorten(tensor.dtype), fmt::join(tensor.shape, ","));
}

File File::open(const std::filesystem::path& path) {
  auto mapping = MappedFile::open(path);
  File file = from_bytes(mapping->bytes(), path.string());
  file.mapping_ = std::move(mapping);
  return file;
}

File File::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kLengthBytes) {
    refuse(name,
           text::format("found {} bytes, wanted a safetensors file (at least 8 bytes of header length)", bytes.size()));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  const std::uint64_t rest = bytes.size() - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes) {
    refuse(name, text::format("header length: found {} bytes, wanted at most {} (not a safetensors file?)",
                              header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > rest) {
    refuse(name,
           text::format("header length: found {} bytes, but only {} follow (truncated file?)", header_bytes, rest));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  Header header = parse_header({text, static_cast<std::size_t>(header_bytes)}, name);

  const auto data = bytes.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));
  for (const auto& tensor : header.tensors) check_range(tensor, data.size(), name);
  check_cover(header.tensors, data.size(), name);

  File file;
  file.name_ = name;
  file.metadata_ = std::move(header.metadata);
  file.tensors_.reserve(header.tensors.size());
  for (auto& tensor : header.tensors) {
    file.tensors_.push_back(
        {std::move(tensor.name),
         std::move(tensor.dtype),
         {tensor.shape.begin(), tensor.shape.end()},
         data.subspan(static_cast<std::size_t>(tensor.begin), static_cast<std::size_t>(tensor.end - tensor.begin))});
  }
  return file;
}

const Tensor* File::find(std::string_view tensor) const noexcept {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == tensor; });
  return found == tensors_.end() ? nullptr : &*found;
}

const Tensor& File::require(std::string_view tensor, std::string_view dtype, std::span<const Axis> axes) const {
  const Tensor* found = find(tensor);
  if (found == nullptr) {
    std::string names;
    for (const Tensor& other : tensors_) {
      if (names.size() > 200) {
        names += ", ...";
        break;
      }
      names += text::format("{}{}", names.empty() ? "" : ", ", shorten(other.name));
    }
    refuse(name_, text::format("tensor \"{}\": missing, wanted {}; the file holds: {}", tensor,
                               describe_wanted(dtype, axes), names.empty() ? "nothing" : names));
  }
  bool fits = found->dtype == dtype && found->shape.size() == axes.size();
  for (std::size_t i = 0; fits && i < axes.size(); ++i) fits = axes[i].size < 0 || found->shape[i] == axes[i].size;
  if (!fits) {
    refuse(name_,
           text::format("tensor \"{}\": found {}, wanted {}", tensor, describe(*found), describe_wanted(dtype, axes)));
  }
  return *found;
}

const void* File::aligned(const Tensor& tensor, std::size_t alignment,
                          std::vector<std::shared_ptr<const void>>& owners) const {
  if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % alignment == 0) {
    if (mapping_ != nullptr && std::find(owners.begin(), owners.end(), mapping_) == owners.end())
      owners.push_back(mapping_);
    return tensor.data.data();
  }
  const std::size_t bytes = std::max<std::size_t>(tensor.data.size(), 1);
  std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);  // operator new aligns for every fundamental type
  if (!tensor.data.empty()) std::memcpy(copy.get(), tensor.data.data(), tensor.data.size());
  owners.push_back(copy);
  return copy.get();
}

Writer::Writer(const std::filesystem::path& path, std::vector<Spec> specs,
               const std::map<std::string, std::string>& metadata)
    : file_(path) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (Spec& spec : specs) {
    std::uint64_t bytes = 0;
    const std::vector<std::uint64_t> shape(spec.shape.begin(), spec.shape.end());
    const unsigned bits = element_bits(spec.dtype);
    const bool negative = std::any_of(spec.shape.begin(), spec.shape.end(), [](std::int64_t size) { return size < 0; });
    if (bits == 0 || negative || !tensor_bytes(shape, bits, bytes) || wanted_ + bytes < wanted_) {
      throw Error(ErrorKind::internal, text::format("{}: cannot write tensor \"{}\" as {} [{}]", path.string(),
                                                    spec.name, spec.dtype, fmt::join(spec.shape, ",")));
    }
    header[spec.name] = {{"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {wanted_, wanted_ + bytes}}};
    wanted_ += bytes;
  }
  // Metadata may come from anywhere: bytes that are not UTF-8 become U+FFFD instead of an exception.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::size_t unpadded = kLengthBytes + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(text);
}

void Writer::append_bytes(std::span<const std::byte> bytes) {
  file_.write(bytes);
  written_ += bytes.size();
}

void Writer::commit() {
  if (written_ != wanted_) {
    throw Error(ErrorKind::internal, text::format("wrote {} tensor bytes, promised {}", written_, wanted_));
  }
  file_.commit();
}

}  // namespace dosa::safetensors
