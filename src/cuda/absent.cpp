// Stands in for the CUDA backend in builds without nvcc: asking for it is an error, never a fallback.
#include "absent_reason.hpp"
#include "contract/backend.hpp"

namespace dosa::detail {

const BackendTable* cuda_backend() noexcept { return nullptr; }

const std::string& cuda_why() noexcept {
  static const std::string kWhy = "not built in (" DOSA_CUDA_ABSENT ")";
  return kWhy;
}

std::string cuda_refuses(const Shape&, const Options&) { return cuda_why(); }

}  // namespace dosa::detail
