// The Hopper GPU this process runs on, and making a plan's device the current one.
#pragma once

#include <cuda.h>

#include <string>

#include "dosa/tensor.hpp"

namespace dosa::cuda {

struct Hardware {
  bool usable = false;
  int multiprocessors = 0;
  std::string why;
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
};

/// Looked up once; never throws.
const Hardware& hardware();

/// The plan's device is current while this lives.
class OnDevice {
 public:
  explicit OnDevice(const Device& device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace dosa::cuda
