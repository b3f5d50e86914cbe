// Trace files: the library's reader and writer, arrays as buffers that keep the mapping alive.
#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "problem.hpp"
#include "register.hpp"

namespace dosa::python {
namespace {

/// A read-only NumPy array over the mapping, which `owner` keeps.
template <class T, std::size_t Rank>
nb::object exported(const TensorView<const T, Rank>& view, nb::handle owner) {
  std::array<std::size_t, Rank> shape;
  for (std::size_t axis = 0; axis < Rank; ++axis) shape[axis] = static_cast<std::size_t>(view.shape[axis]);
  return nb::cast(nb::ndarray<nb::numpy, const T>(view.data, Rank, shape.data(), owner, view.strides.data()),
                  nb::rv_policy::reference);
}

nb::tuple read_trace(const std::filesystem::path& path) {
  auto* held = new Trace([&] {
    const nb::gil_scoped_release unlocked;
    return Trace::open(path);
  }());
  const nb::capsule owner(held, [](void* trace) noexcept { delete static_cast<Trace*>(trace); });
  const Problem& problem = held->problem();
  const auto& keys = std::get<ContiguousKeys>(problem.keys);
  nb::dict arrays;
  arrays["q"] = exported(problem.q, owner);
  arrays["k"] = exported(keys.codes, owner);
  arrays["k_scale"] = exported(keys.scales, owner);
  arrays["weights"] = exported(problem.weights, owner);
  arrays["ks"] = exported(problem.ks, owner);
  arrays["ke"] = exported(problem.ke, owner);
  return nb::make_tuple(arrays, held->metadata());
}

}  // namespace

void register_trace(nb::module_& module) {
  module.def("read_trace", &read_trace, nb::arg("path"));
  module.def(
      "write_trace",
      [](const std::filesystem::path& path, const Inputs& inputs, const std::map<std::string, std::string>& metadata) {
        if (inputs.shape().device.kind != DeviceKind::cpu)
          throw Error(ErrorKind::bad_input, "write: found arrays on a device, wanted them in host memory");
        const nb::gil_scoped_release unlocked;
        write_trace(path, inputs.problem(), metadata);
      },
      nb::arg("path"), nb::arg("inputs"), nb::arg("metadata"));
}

}  // namespace dosa::python
