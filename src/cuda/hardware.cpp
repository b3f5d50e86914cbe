#include "cuda/hardware.hpp"

#include <cuda_runtime.h>

#include "contract/text.hpp"
#include "cuda/staging.hpp"

namespace dosa::cuda {
namespace {

Hardware look() {
  Hardware found;
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) {
    found.why =
        text::format("built for sm_90a with CUDA {}.{}; no GPU here ({})", CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10, status != cudaSuccess ? cudaGetErrorString(status) : "no device");
    return found;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device properties");
  if (properties.major != 9 || properties.minor != 0) {
    found.why = text::format("built for sm_90a; device 0 is {} (compute capability {}.{}), wanted a Hopper GPU (9.0)",
                             properties.name, properties.major, properties.minor);
    return found;
  }
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      entry == nullptr) {
    found.why = "the driver has no cuTensorMapEncodeTiled, wanted a driver for CUDA 12 or later";
    return found;
  }
  found.encode = reinterpret_cast<decltype(found.encode)>(entry);
  found.usable = true;
  found.multiprocessors = properties.multiProcessorCount;
  found.why = text::format("sm_90a, CUDA {}.{}, on {} ({} SMs)", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                           properties.name, properties.multiProcessorCount);
  return found;
}

}  // namespace

const Hardware& hardware() {
  static const Hardware kFound = [] {
    try {
      return look();
    } catch (const Error& error) {
      Hardware none;
      none.why = error.what();
      return none;
    }
  }();
  return kFound;
}

OnDevice::OnDevice(const Device& device) {
  check(cudaGetDevice(&before_), "current device");
  if (device.kind == DeviceKind::cuda && device.index != before_) check(cudaSetDevice(device.index), "device");
}

OnDevice::~OnDevice() { cudaSetDevice(before_); }

}  // namespace dosa::cuda
