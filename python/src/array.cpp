#include "array.hpp"

#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "arguments.hpp"
#include "contract/text.hpp"

namespace dosa::python {
namespace {

std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::string dtype_name(const dlpack::DataType& dtype) {
  static constexpr const char* kFloat8[] = {"float8_e3m4",     "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
                                            "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",    "float8_e8m0fnu"};
  switch (dtype.code) {
    case dlpack::kInt:
      return text::format("int{}", dtype.bits);
    case dlpack::kUInt:
      return text::format("uint{}", dtype.bits);
    case dlpack::kFloat:
      return text::format("float{}", dtype.bits);
    case dlpack::kBfloat:
      return text::format("bfloat{}", dtype.bits);
    case dlpack::kBool:
      return "bool";
    default:
      break;
  }
  if (dtype.code >= 7 && dtype.code < 15) return kFloat8[dtype.code - 7];
  return text::format("dtype code {} of {} bits", dtype.code, dtype.bits);
}

constexpr std::uint8_t kUnknown = 255;  // a type code that nothing accepts

// What a Py_buffer's format says, or kUnknown. Native sizes as `struct` has them.
dlpack::DataType buffer_dtype(const char* format, Py_ssize_t item_size) {
  const char* letter = format == nullptr ? "B" : format;
  if (*letter == '@' || *letter == '=' || *letter == '<') ++letter;
  const auto bits = static_cast<std::uint8_t>(8 * item_size);
  if (letter[0] != '\0' && letter[1] == '\0') {
    switch (*letter) {
      case 'b':
      case 'h':
      case 'i':
      case 'l':
      case 'q':
      case 'n':
        return {dlpack::kInt, bits, 1};
      case 'B':
      case 'H':
      case 'I':
      case 'L':
      case 'Q':
      case 'N':
      case 'c':
        return {dlpack::kUInt, bits, 1};
      case 'e':
      case 'f':
      case 'd':
      case 'g':
        return {dlpack::kFloat, bits, 1};
      case '?':
        return {dlpack::kBool, bits, 1};
      default:
        break;
    }
  }
  return {kUnknown, bits, 1};
}

[[noreturn]] void no_array(const std::string& name, nb::handle object, const std::string& why) {
  throw TypeMismatch(text::format("{}: found {}, wanted an array ({})", name,
                                  text_of(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))), why));
}

/// The device type that the object's `__dlpack_device__` tells.
std::int64_t device_type(const std::string& name, nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) no_array(name, object, "__dlpack_device__ beside __dlpack__");
  const nb::object told = object.attr("__dlpack_device__")();
  const bool pair = PyTuple_Check(told.ptr()) != 0 && nb::len(told) == 2;
  std::int64_t type = 0;
  if (!pair || !nb::try_cast(nb::object(told[0]), type))
    throw TypeMismatch(
        text::format("{}: found {} from __dlpack_device__, wanted (device type, device index)", name, described(told)));
  return type;
}

/// Message of the Python error that is set; clears it.
std::string taken_error() {
  nb::python_error error;
  return text_of(error.value());
}

/// The type's exchange table, or null. Remembered for types that have one, which a reference keeps at their address,
/// and for static types. A class of somebody's script must not be kept: it would hold the script's globals at exit.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static auto& known = *new std::unordered_map<PyTypeObject*, const dlpack::ExchangeApi*>();
  if (const auto it = known.find(type); it != known.end()) return it->second;
  const dlpack::ExchangeApi* api = nullptr;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule != nullptr && PyCapsule_IsValid(capsule, "dlpack_exchange_api") != 0)
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_XDECREF(capsule);
  PyErr_Clear();
  while (api != nullptr && api->version.major != 1) api = api->previous;
  if (api != nullptr && api->view_object == nullptr) api = nullptr;
  if (api != nullptr || (PyType_GetFlags(type) & Py_TPFLAGS_HEAPTYPE) == 0) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known.emplace(type, api);
  }
  return api;
}

}  // namespace

Array::Array(nb::handle object, const char* name, const nb::object& stream) : name_(name) {
  owner_ = nb::borrow(object);
  if (read_exchange(object, stream.is_none())) return;
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    if (read_buffer(object)) return;
    PyErr_Clear();  // NumPy exports no buffer of ml_dtypes' types
  }
  if (!nb::hasattr(object, "__dlpack__")) no_array(name_, object, "the buffer protocol or __dlpack__");

  nb::object capsule;
  std::string refusal;
  const bool on_device = device_type(name_, object) != dlpack::kCpu;
  nb::dict keywords;
  // CUDA's handle 0 is ambiguous to DLPack; 1 is its word for the same legacy default stream.
  if (on_device && !stream.is_none()) keywords["stream"] = nb::cast<std::uintptr_t>(stream) == 0 ? nb::int_(1) : stream;
  keywords["max_version"] = nb::make_tuple(1, 1);
  for (int attempt = 0; attempt < 2 && !capsule.is_valid(); ++attempt) {
    try {
      capsule = object.attr("__dlpack__")(**keywords);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;  // an interrupt is nobody's refusal
      refusal = text_of(error.value());
      // Producers older than DLPack 1.0 do not know the argument.
      if (!error.matches(PyExc_TypeError)) break;
      nb::del(keywords["max_version"]);
    }
  }
  if (!capsule.is_valid()) {
    // A float8 dtype that the framework's DLPack does not carry: its bytes are what is wanted.
    nb::object codes = nb::module_::import_("dosa._interop").attr("code_bytes")(object);
    if (codes.is_none())
      throw TypeMismatch(text::format("{}: found {}, wanted a dtype that its framework exports ({})", name_,
                                      nb::hasattr(object, "dtype") ? text_of(object.attr("dtype")) : "an array",
                                      refusal));
    *this = Array(codes, name, stream);
    dtype_.code = dlpack::kFloat8E4m3fn;
    return;
  }
  read_capsule(capsule);
  owner_ = nb::make_tuple(object, capsule);  // an unconsumed capsule frees its tensor when it goes
}

bool Array::read_exchange(nb::handle object, bool ask_stream) {
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()));
  if (api == nullptr) return false;
  dlpack::Tensor tensor{};
  if (api->view_object(object.ptr(), &tensor) != 0)
    throw Error(ErrorKind::bad_input, text::format("{}: {}", name_, taken_error()));
  read_tensor(tensor);
  if (ask_stream && device_.kind == DeviceKind::cuda &&
      api->current_stream(tensor.device.type, tensor.device.index, &stream_) != 0)
    throw Error(ErrorKind::bad_input, text::format("{}: {}", name_, taken_error()));
  return true;
}

bool Array::read_buffer(nb::handle object) {
  // Held as long as the view: a bytearray must not be resized under it.
  auto held = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), held.get(), PyBUF_RECORDS_RO) != 0) return false;
  buffer_ = {held.release(), [](Py_buffer* taken) {
               PyBuffer_Release(taken);
               delete taken;
             }};
  const Py_buffer& buffer = *buffer_;
  dtype_ = buffer_dtype(buffer.format, buffer.itemsize);
  if (dtype_.code == kUnknown) format_ = buffer.format;
  data_ = buffer.buf;
  read_only_ = buffer.readonly != 0;
  if (buffer.ndim > kMaxRank)
    throw Error(ErrorKind::bad_input,
                text::format("{}: found {} axes, wanted {} or fewer", name_, buffer.ndim, kMaxRank));
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    shape_[a] = buffer.shape[axis];
    const Py_ssize_t bytes = buffer.strides[axis];
    if (bytes % buffer.itemsize != 0 && shape_[a] > 1)
      throw Error(ErrorKind::bad_input,
                  text::format("{}: found a stride of {} bytes on axis {}, wanted a multiple of {} (whole elements)",
                               name_, bytes, axis, buffer.itemsize));
    strides_[a] = bytes / buffer.itemsize;
  }
  rank_ = buffer.ndim;
  return true;
}

void Array::read_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1)
      throw Error(ErrorKind::bad_input,
                  text::format("{}: found DLPack version {}, wanted 1", name_, managed->version.major));
    read_only_ = (managed->flags & dlpack::kReadOnly) != 0;
    read_tensor(managed->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    read_tensor(static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  } else {
    throw TypeMismatch(text::format("{}: found no DLPack capsule from __dlpack__, wanted one", name_));
  }
}

void Array::read_tensor(const dlpack::Tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > kMaxRank)
    throw Error(ErrorKind::bad_input,
                text::format("{}: found {} axes, wanted {} or fewer", name_, tensor.rank, kMaxRank));
  switch (tensor.device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      device_ = {};
      break;
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      device_ = {DeviceKind::cuda, tensor.device.index};
      break;
    default:
      throw Error(ErrorKind::bad_input, text::format("{}: found DLPack device type {}, wanted CPU or CUDA memory",
                                                     name_, tensor.device.type));
  }
  dtype_ = tensor.dtype;
  data_ = tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  std::int64_t row_major = 1;
  for (int axis = tensor.rank; axis-- > 0;) {
    const auto a = static_cast<std::size_t>(axis);
    shape_[a] = tensor.shape[axis];
    strides_[a] = tensor.strides != nullptr ? tensor.strides[axis] : row_major;
    row_major *= shape_[a];
  }
  rank_ = tensor.rank;
}

std::string Array::found() const {
  const std::string dtype = format_.empty() ? dtype_name(dtype_) : text::format("buffer format '{}'", format_);
  return text::format("{} [{}]", dtype, fmt::join(shape_.begin(), shape_.begin() + rank_, ", "));
}

void Array::mismatch(const char* wanted) const {
  throw TypeMismatch(text::format("{}: found {}, wanted {}", name_, found(), wanted));
}

std::pair<std::uintptr_t, std::uintptr_t> Array::range() const noexcept {
  const std::int64_t item = dtype_.bits / 8;
  auto first = reinterpret_cast<std::uintptr_t>(data_), last = first + static_cast<std::uintptr_t>(item);
  if (rank_ < 0 || data_ == nullptr) return {0, 0};
  for (int axis = 0; axis < rank_; ++axis) {
    if (extent(axis) == 0) return {0, 0};
    const std::int64_t reach = (extent(axis) - 1) * stride(axis) * item;
    (reach < 0 ? first : last) += static_cast<std::uintptr_t>(reach);
  }
  return {first, last};
}

std::vector<std::pair<std::uintptr_t, std::uintptr_t>> Array::runs() const {
  const auto [begin, end] = range();
  if (begin == end) return {};
  std::int64_t length = dtype_.bits / 8;
  const std::int64_t item = length;
  std::array<bool, kMaxRank> inner{};
  for (int axis = rank_; axis-- > 0;) {
    const bool one = extent(axis) == 1 || stride(axis) == 0;
    if (!one && std::abs(stride(axis)) * item != length) break;
    inner[static_cast<std::size_t>(axis)] = true;
    if (!one) length *= extent(axis);
  }
  // From the lowest address up, whatever the strides' signs.
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> found = {{begin, begin + static_cast<std::uintptr_t>(length)}};
  for (int axis = 0; axis < rank_; ++axis) {
    if (inner[static_cast<std::size_t>(axis)] || stride(axis) == 0) continue;
    const std::size_t before = found.size();
    const auto step = static_cast<std::uintptr_t>(std::abs(stride(axis)) * item);
    for (std::uintptr_t i = 1; i < static_cast<std::uintptr_t>(extent(axis)); ++i)
      for (std::size_t n = 0; n < before; ++n)
        found.emplace_back(found[n].first + i * step, found[n].second + i * step);
  }
  return found;
}

void Array::check_output() const {
  if (read_only_)
    throw Error(ErrorKind::bad_input, text::format("{}: found a read-only array, wanted a writable one", name_));
  // Rows must not share memory: two axes are enough for every output.
  const auto span = [&](int axis) { return (extent(axis) - 1) * std::abs(stride(axis)); };
  for (int axis = 0; axis < rank_; ++axis)
    if (extent(axis) == 0) return;
  bool overlaps = false;
  for (int axis = 0; axis < rank_; ++axis) overlaps = overlaps || (extent(axis) > 1 && stride(axis) == 0);
  if (rank_ == 2 && extent(0) > 1 && extent(1) > 1)
    overlaps = overlaps || (std::abs(stride(0)) <= span(1) && std::abs(stride(1)) <= span(0));
  if (overlaps)
    throw Error(ErrorKind::bad_input,
                text::format("{}: found an array whose elements share memory, wanted separate ones", name_));
}

}  // namespace dosa::python
