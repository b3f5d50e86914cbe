// What is written for a selected key: the one place that knows the index bases.
#pragma once

#include <cstdint>

#include "contract/host_device.hpp"
#include "dosa/problem.hpp"
#include "dosa/types.hpp"

namespace dosa {

/// `key` is local to the view; `window_first` = max(ks, 0). `paged` is read for IndexBase::slot alone.
DOSA_HOST_DEVICE [[nodiscard]] inline std::int64_t written_index(const PagedKeys* paged, IndexBase base,
                                                                 std::int64_t request, std::int64_t first_key,
                                                                 std::int64_t window_first, std::int64_t key) noexcept {
  if (base == IndexBase::absolute) return key + first_key;
  if (base == IndexBase::window) return key + first_key - window_first;
  const auto& table = paged->block_table;
  const std::int64_t page = table.data[request * table.strides[0] + key / paged->page_size * table.strides[1]];
  return page * paged->page_size + key % paged->page_size;
}

}  // namespace dosa
