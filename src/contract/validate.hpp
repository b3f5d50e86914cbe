// Every check of a call, in one place. Messages say what was found and what was wanted.
#pragma once

#include <string_view>

#include "dosa/plan.hpp"

namespace dosa::detail {

void validate_options(const Options& options, const Shape& shape);
void validate_shape(const Shape& shape);
/// Views against the plan's shape, row_request and visible pages. Reads ks, ke, row_request and visible block table
/// entries.
void validate_problem(const Problem& problem, const Shape& shape, const Options& options);
/// Throws Error{bad_input} where `found`, the place of `name`, is not the plan's.
void check_device(std::string_view name, const Device& found, const Device& wanted);
void validate_selection(const Selection& selection, const Shape& shape, const Options& options);

}  // namespace dosa::detail
