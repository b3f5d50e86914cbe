#include "contract/text.hpp"

namespace dosa::text {

std::string format_values(fmt::string_view pattern, fmt::format_args values) { return fmt::vformat(pattern, values); }

void print_values(std::FILE* file, fmt::string_view pattern, fmt::format_args values) {
  fmt::vprint(file, pattern, values);
}

}  // namespace dosa::text
