#include "overlap.hpp"

#include <algorithm>
#include <cstddef>

#include "contract/text.hpp"

namespace dosa::python {
namespace {

bool share_a_byte(const Array& a, const Array& b) {
  const auto near = a.range(), far = b.range();
  if (near.first >= far.second || far.first >= near.second || near.first == near.second || far.first == far.second)
    return false;
  // Rare: the two lie in one block of memory. Then their runs of bytes decide.
  auto left = a.runs(), right = b.runs();
  std::sort(left.begin(), left.end());
  std::sort(right.begin(), right.end());
  std::size_t i = 0, j = 0;
  while (i < left.size() && j < right.size()) {
    if (left[i].second <= right[j].first) {
      ++i;
    } else if (right[j].second <= left[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

void refuse(const Array& written, const Array& other) {
  if (share_a_byte(written, other))
    throw Error(ErrorKind::bad_input, text::format("{}: found memory that {} also holds, wanted memory of its own",
                                                   written.name(), other.name()));
}

}  // namespace

void refuse_shared_memory(const std::vector<const Array*>& written, const std::vector<const Array*>& read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (std::size_t j = i + 1; j < written.size(); ++j) refuse(*written[i], *written[j]);
    for (const Array* array : read) refuse(*written[i], *array);
  }
}

}  // namespace dosa::python
