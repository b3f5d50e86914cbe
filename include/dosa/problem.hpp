// One call's inputs and outputs, as views. The contract they obey is stated in docs/contract.md and
// enforced in one place: src/contract/validate.cpp.
#pragma once

#include <cstdint>
#include <variant>

#include "dosa/export.hpp"
#include "dosa/tensor.hpp"

namespace dosa DOSA_PUBLIC {

/// Keys of one packed sequence axis. Several requests share it by their windows (ks > 0).
struct ContiguousKeys {
  TensorView<const std::uint8_t, 2> codes;  ///< E4M3 [N,D]; the last axis is contiguous
  TensorView<const float, 1> scales;        ///< F32 [N]
};

/// Keys in pages of P tokens: P*D code bytes, then P F32 scales (DeepGEMM, SGLang and vLLM with P = 64).
/// Logical key i of request r lies in physical page block_table[r][i / P] at token i % P; N = columns * P.
struct PagedKeys {
  const std::uint8_t* cache = nullptr;  ///< first byte of physical page 0, aligned for F32
  std::int64_t pages = 0;               ///< physical pages in the cache
  std::int64_t page_stride = 0;         ///< bytes from one page to the next: at least P*(D+4), a multiple of 4
  std::int32_t page_size = 0;           ///< P: a power of two in 1..256
  std::int32_t head_dim = 0;            ///< D
  TensorView<const std::int32_t, 2> block_table;  ///< I32 [R, columns]; only entries of visible pages are read
  Device device{};
};

using Keys = std::variant<ContiguousKeys, PagedKeys>;

/// score(t,i) = k_scale[i] * sum over h of weights[t,h] * relu(q[t,h] . k[i]), for keys max(ks,0) <= i < min(ke,N).
struct Problem {
  TensorView<const std::uint8_t, 3> q;  ///< E4M3 [Q,H,D]; H 1..128, D a multiple of 32 in 32..256
  TensorView<const float, 2> weights;   ///< F32 [Q,H], signed; every constant factor is folded in
  Keys keys;
  TensorView<const std::int32_t, 1> ks;  ///< I32 [Q], first visible key (negative means 0)
  TensorView<const std::int32_t, 1> ke;  ///< I32 [Q], one past the last visible key; ke <= ks: no key
  /// I32 [Q], paged keys only: each row's request. Absent: row t belongs to request t / (Q / R), next_n = Q / R rows
  /// each.
  TensorView<const std::int32_t, 1> row_request;
};

/// Where a call writes. Nothing beyond a row's K slots is touched.
struct Selection {
  TensorView<std::int32_t, 2> indices;  ///< I32 [Q,K]; -1 past the row's length
  TensorView<std::int32_t, 1> lengths;  ///< I32 [Q]
  TensorView<float, 2> scores;          ///< F32 [Q,K], absent unless Options::scores; -inf past the length
};

}  // namespace DOSA_PUBLIC
