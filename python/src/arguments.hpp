// Options as Python hands them over. nanobind's own conversion errors list signatures of internal functions; people are
// told which argument it is, what was found and what was wanted.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "contract/text.hpp"
#include "dosa/plan.hpp"
#include "dosa/types.hpp"

namespace dosa::python {

namespace nb = nanobind;

/// "3.5 (float)", cut where it is long.
[[nodiscard]] std::string described(nb::handle object);

/// An int, or whatever else has `__index__` (NumPy's integers). Throws TypeMismatch, or Error{usage} beyond 64 bits.
[[nodiscard]] std::int64_t integer(nb::handle object, const char* name);
/// The same, of 32 bits.
[[nodiscard]] std::int32_t small_integer(nb::handle object, const char* name);
/// True or False, NumPy's included. Throws TypeMismatch.
[[nodiscard]] bool flag(nb::handle object, const char* name);
/// A CUDA stream handle, an integer that is not negative; None: absent.
[[nodiscard]] std::optional<std::uintptr_t> stream_argument(nb::handle object);
/// (first_key, total_keys); None: absent.
[[nodiscard]] std::optional<Shard> shard_argument(nb::handle object);

[[nodiscard]] std::optional<std::string> text_if_str(nb::handle object);
[[noreturn]] void type_mismatch(const std::string& message);

/// What `parse` makes of a str. For other objects its message, which lists the words, as a TypeError.
template <class Parse>
auto word(nb::handle object, Parse parse) {
  if (const auto text = text_if_str(object)) return parse(std::string_view(*text));
  try {
    (void)parse(std::string_view(described(object)));
  } catch (const Error& error) {
    type_mismatch(error.what());
  }
  type_mismatch(text::format("found {}, wanted str", described(object)));
}

}  // namespace dosa::python
