// The part of DLPack's C ABI (https://dmlc.github.io/dlpack, versions 0.8 to 1.3) that a reader needs. nanobind's own
// array class stops at the dtypes it knows; indexer inputs are float8_e4m3fn.
#pragma once

#include <cstdint>

namespace dosa::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4m3fn = 10 };

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null before version 1.2 means row-major without gaps
  std::uint64_t byte_offset;
};

struct Managed {  ///< capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  std::uint32_t major, minor;
};

inline constexpr std::uint64_t kReadOnly = 1;

struct ManagedVersioned {  ///< capsule "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// A type's table of C functions: capsule "dlpack_exchange_api" in the type's `__dlpack_c_exchange_api__`.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*from_object)(void* object, ManagedVersioned** out);
  int (*to_object)(ManagedVersioned* tensor, void** out);
  int (*view_object)(void* object, Tensor* out);  ///< borrowed: valid while the object lives; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out);
};

}  // namespace dosa::python::dlpack
