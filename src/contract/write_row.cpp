#include "contract/write_row.hpp"

#include <algorithm>
#include <limits>

#include "contract/written_index.hpp"

namespace dosa {
namespace {

constexpr float kForcedScore = std::numeric_limits<float>::infinity(), kEmptyScore = -kForcedScore;

}  // namespace

void RowWriter::put(std::int64_t key, float score) {
  *selection_.indices.at(row_.row, slot_) = static_cast<std::int32_t>(
      written_index(paged_, options_.index_base, row_.request, row_.first_key, row_.window.first, key));
  if (options_.scores) *selection_.scores.at(row_.row, slot_) = score;
  ++slot_;
}

void RowWriter::put_all(std::span<const Entry> entries) {
  if (options_.index_base == IndexBase::slot) {
    for (const Entry& entry : entries) put(entry.index, entry.score);
    return;
  }
  // Every other base is a distance.
  const std::int64_t distance =
      written_index(paged_, options_.index_base, row_.request, row_.first_key, row_.window.first, 0);
  const std::int64_t stride = selection_.indices.strides[1];
  std::int32_t* const out = selection_.indices.at(row_.row, slot_);
  const auto count = static_cast<std::int64_t>(entries.size());
  const auto index = [&](std::int64_t j) {
    return static_cast<std::int32_t>(entries[static_cast<std::size_t>(j)].index + distance);
  };
  if (stride == 1) {
    for (std::int64_t j = 0; j < count; ++j) out[j] = index(j);
  } else {
    for (std::int64_t j = 0; j < count; ++j) out[j * stride] = index(j);
  }
  if (options_.scores) {
    for (std::int64_t j = 0; j < count; ++j)
      *selection_.scores.at(row_.row, slot_ + j) = entries[static_cast<std::size_t>(j)].score;
  }
  slot_ += count;
}

void RowWriter::finish() {
  *selection_.lengths.at(row_.row) = static_cast<std::int32_t>(slot_);
  for (; slot_ < options_.top_k; ++slot_) {
    *selection_.indices.at(row_.row, slot_) = -1;
    if (options_.scores) *selection_.scores.at(row_.row, slot_) = kEmptyScore;
  }
}

void write_row(const Problem& problem, const Options& options, const Row& row, std::span<Entry> entries,
               const Selection& selection) {
  RowWriter writer(std::get_if<PagedKeys>(&problem.keys), options, row, selection);
  const auto put_forced = [&](const Window& forced) {
    for (std::int64_t key = forced.first; key < forced.last && !writer.full(); ++key) writer.put(key, kForcedScore);
  };
  put_forced(row.head);
  if (options.order == Order::score) {
    put_forced(row.tail);
    std::sort(entries.begin(), entries.end(), before);
    writer.put_all(entries);
  } else {
    const auto by_index = [](const Entry& a, const Entry& b) { return a.index < b.index; };
    if (!std::is_sorted(entries.begin(), entries.end(), by_index)) std::sort(entries.begin(), entries.end(), by_index);
    writer.put_all(entries);
    put_forced(row.tail);
  }
  writer.finish();
}

}  // namespace dosa
