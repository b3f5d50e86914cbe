// Every check of a call, in one place. Messages say what was found and what was wanted.
#pragma once

#include "dosa/plan.hpp"

namespace dosa::detail {

void validate_options(const Options& options, const Shape& shape);
void validate_shape(const Shape& shape);
/// Views against the plan's shape, row_request and visible pages. Reads ks, ke, row_request and visible block table
/// entries.
void validate_problem(const Problem& problem, const Shape& shape, const Options& options);
void validate_selection(const Selection& selection, const Shape& shape, const Options& options);

}  // namespace dosa::detail
