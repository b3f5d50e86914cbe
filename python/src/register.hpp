// What each file adds to dosa._core.
#pragma once

#include <nanobind/nanobind.h>

namespace dosa::python {

void register_certificate(nanobind::module_& module);
void register_trace(nanobind::module_& module);

}  // namespace dosa::python
