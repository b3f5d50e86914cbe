// Host tensors on a device: for the command line and everybody who calls run() with host memory. Layouts travel as they
// are (strides, gaps, misalignment), so the device reads what the caller described.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "dosa/plan.hpp"

namespace dosa::cuda {

/// Throws Error{internal} with CUDA's own words.
void check(cudaError_t status, const char* what);

/// Device memory that lives as long as this object.
class Staging {
 public:
  explicit Staging(Device device) : device_(device) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Views of copies. Outputs of upload are inputs only.
  [[nodiscard]] Problem upload(const Problem& problem);
  /// Dense device outputs for a selection of this shape.
  [[nodiscard]] Selection outputs(const Selection& selection);
  template <class T, std::size_t Rank>
  [[nodiscard]] TensorView<T, Rank> output(const TensorView<T, Rank>& like);
  /// Copies dense device output into the caller's views.
  void download(const Selection& from, const Selection& to);
  void download(const TensorView<float, 2>& from, const TensorView<float, 2>& to);

 private:
  template <class T, std::size_t Rank>
  [[nodiscard]] TensorView<T, Rank> upload_view(const TensorView<T, Rank>& view);
  [[nodiscard]] void* upload_bytes(const void* from, std::size_t bytes);

  Device device_;
  std::vector<void*> owned_;
};

}  // namespace dosa::cuda
