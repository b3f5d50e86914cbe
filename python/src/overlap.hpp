// Memory that a call writes must be nobody else's: it would read what it has just written.
#pragma once

#include <vector>

#include "array.hpp"

namespace dosa::python {

/// Throws Error{bad_input} where two of `written`, or one of them and one of `read`, hold the same byte. Arrays that
/// lie between each other's elements (columns of one table) are fine. Absent and empty arrays share nothing.
void refuse_shared_memory(const std::vector<const Array*>& written, const std::vector<const Array*>& read);

}  // namespace dosa::python
