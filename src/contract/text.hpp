#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace dosa::text {

std::string format_values(fmt::string_view pattern, fmt::format_args values);
void print_values(std::FILE* file, fmt::string_view pattern, fmt::format_args values);

// fmt::format and fmt::print, with fmt's machinery compiled once, in text.cpp. Called directly, header-only fmt is
// compiled anew in every file: two seconds each, and each a chance for an optimiser's false warning about fmt's insides
// (GCC 13: -Warray-bounds), which no pragma around the include silences.
template <class... T>
std::string format(fmt::format_string<T...> pattern, T&&... values) {
  return format_values(pattern, fmt::make_format_args(values...));
}

template <class... T>
void print(std::FILE* file, fmt::format_string<T...> pattern, T&&... values) {
  print_values(file, pattern, fmt::make_format_args(values...));
}

}  // namespace dosa::text
