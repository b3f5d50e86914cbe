#include "arguments.hpp"

#include <nanobind/stl/string.h>

#include <limits>

#include "array.hpp"

namespace dosa::python {
namespace {

std::string class_name(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__")));
}

/// A Python int; null where the object has no `__index__` or refuses it.
nb::object as_int(nb::handle object) {
  if (PyIndex_Check(object.ptr()) == 0) return {};
  PyObject* number = PyNumber_Index(object.ptr());
  if (number == nullptr) PyErr_Clear();
  return nb::steal(number);
}

}  // namespace

std::string described(nb::handle object) {
  constexpr std::size_t kLongest = 60;
  const nb::object words = nb::steal(PyObject_Repr(object.ptr()));
  if (!words.is_valid()) throw nb::python_error();
  // Python's characters, not bytes: a cut must not go through one.
  nb::object shown = words;
  if (nb::len(words) > kLongest)
    shown = nb::steal(PySequence_GetSlice(words.ptr(), 0, static_cast<Py_ssize_t>(kLongest))) + nb::str("...");
  const nb::object bytes = shown.attr("encode")("utf-8", "backslashreplace");
  const nb::bytes encoded = nb::borrow<nb::bytes>(bytes);
  return text::format("{} ({})", std::string_view(encoded.c_str(), encoded.size()), class_name(object));
}

void type_mismatch(const std::string& message) { throw TypeMismatch(message); }

std::int64_t integer(nb::handle object, const char* name) {
  const nb::object number = as_int(object);
  if (!number.is_valid()) type_mismatch(text::format("{}: found {}, wanted an integer", name, described(object)));
  std::int64_t value = 0;
  if (!nb::try_cast(number, value))
    throw Error(ErrorKind::usage, text::format("{}: found {}, wanted an integer of 64 bits", name, described(number)));
  return value;
}

std::int32_t small_integer(nb::handle object, const char* name) {
  const std::int64_t value = integer(object, name);
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorKind::usage, text::format("{}: found {}, wanted an integer of 32 bits", name, value));
  return static_cast<std::int32_t>(value);
}

bool flag(nb::handle object, const char* name) {
  if (PyBool_Check(object.ptr()) == 0) {
    const std::string type = class_name(object);
    if (type != "bool" && type != "bool_")
      type_mismatch(text::format("{}: found {}, wanted True or False", name, described(object)));
  }
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

std::optional<std::uintptr_t> stream_argument(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  constexpr const char* kWanted = "a CUDA stream's handle (torch: stream.cuda_stream, CuPy: stream.ptr)";
  const nb::object number = as_int(object);
  if (!number.is_valid()) type_mismatch(text::format("stream: found {}, wanted {}", described(object), kWanted));
  std::uintptr_t handle = 0;
  if (!nb::try_cast(number, handle))
    throw Error(ErrorKind::usage, text::format("stream: found {}, wanted {}", described(number), kWanted));
  return handle;
}

std::optional<Shard> shard_argument(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  const bool sequence = PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0;
  if (!sequence || nb::len(object) != 2)
    type_mismatch(text::format("shard: found {}, wanted (first_key, total_keys)", described(object)));
  return Shard{integer(nb::object(object[0]), "shard: first_key"), integer(nb::object(object[1]), "shard: total_keys")};
}

std::optional<std::string> text_if_str(nb::handle object) {
  if (PyUnicode_Check(object.ptr()) == 0) return std::nullopt;
  const nb::object bytes = object.attr("encode")("utf-8", "backslashreplace");
  const nb::bytes encoded = nb::borrow<nb::bytes>(bytes);
  return std::string(encoded.c_str(), encoded.size());
}

}  // namespace dosa::python
