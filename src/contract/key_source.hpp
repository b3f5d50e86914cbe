// Where the keys of one request lie: the one place that turns a logical key index into an address.
#pragma once

#include <bit>
#include <cstdint>

#include "contract/host_device.hpp"
#include "dosa/problem.hpp"

namespace dosa {

struct KeyAddress {
  const std::uint8_t* codes;  ///< D E4M3 codes; nullptr where the physical page is invalid
  const float* scale;
};

/// Keys of one request, local indices 0..N-1 of the view (a shard's first key is 0 here).
class KeySource {
 public:
  KeySource() = default;
  DOSA_HOST_DEVICE explicit KeySource(const ContiguousKeys& keys)
      : codes_(keys.codes.data),
        scales_(keys.scales.data),
        stride_(keys.codes.strides[0]),
        scale_stride_(keys.scales.strides[0]),
        head_dim_(static_cast<std::int32_t>(keys.codes.shape[1])) {}
  DOSA_HOST_DEVICE KeySource(const PagedKeys& keys, std::int64_t request)
      : codes_(keys.cache),
        stride_(keys.page_stride),
        head_dim_(keys.head_dim),
        pages_(keys.pages),
        table_(keys.block_table.data + request * keys.block_table.strides[0]),
        table_stride_(keys.block_table.strides[1]),
        page_shift_(log2_of(keys.page_size)) {}

  // Always inlined: files compiled for one instruction set call these, and a copy with wide instructions that the
  // linker picked for everybody would not run on every processor.
  DOSA_HOST_DEVICE [[nodiscard]] [[gnu::always_inline]] std::int32_t head_dim() const noexcept { return head_dim_; }
  DOSA_HOST_DEVICE [[nodiscard]] bool paged() const noexcept { return table_ != nullptr; }

  /// Reads the block table only for the page of key i.
  DOSA_HOST_DEVICE [[nodiscard]] [[gnu::always_inline]] KeyAddress locate(std::int64_t i) const noexcept {
    if (table_ == nullptr) return {codes_ + i * stride_, scales_ + i * scale_stride_};
    const std::int64_t page = table_[(i >> page_shift_) * table_stride_];
    if (page < 0 || page >= pages_) return {nullptr, nullptr};
    const std::int64_t token = i & ((std::int64_t{1} << page_shift_) - 1);
    const std::uint8_t* base = codes_ + page * stride_;
    const auto* scales = reinterpret_cast<const float*>(base + (std::int64_t{head_dim_} << page_shift_));
    return {base + token * head_dim_, scales + token};
  }

 private:
  DOSA_HOST_DEVICE [[gnu::always_inline]] static int log2_of(std::int32_t power) noexcept {
#if defined(__CUDA_ARCH__)
    return __ffs(power) - 1;  // nvcc 13.0 gets std::countr_zero wrong in device code
#else
    return std::countr_zero(static_cast<std::uint32_t>(power));
#endif
  }

  const std::uint8_t* codes_ = nullptr;
  const float* scales_ = nullptr;
  std::int64_t stride_ = 0;  ///< contiguous: codes from key to key; paged: bytes from page to page
  std::int64_t scale_stride_ = 0;
  std::int32_t head_dim_ = 0;
  std::int64_t pages_ = 0;
  const std::int32_t* table_ = nullptr;
  std::int64_t table_stride_ = 0;
  int page_shift_ = 0;
};

}  // namespace dosa
