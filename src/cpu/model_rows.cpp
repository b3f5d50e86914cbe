#include "cpu/model_rows.hpp"

#include <algorithm>
#include <cstring>

#include "score/e4m3.hpp"

namespace dosa::cpu {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Parts {
  std::size_t flag, weights, exponents, values, total;
  int vectors;
};

Parts parts_of(ScoreModel model, const RowLayout& layout, int heads, int head_dim) {
  Parts parts{};
  parts.vectors = (heads + layout.lanes - 1) / layout.lanes;
  const std::size_t cells = static_cast<std::size_t>(parts.vectors) * static_cast<std::size_t>(layout.lanes) *
                            static_cast<std::size_t>(head_dim);
  const std::size_t padded_heads = (static_cast<std::size_t>(heads) + 7) / 8 * 8;
  const bool f64 = model == ScoreModel::f64;
  parts.weights = rounded(sizeof(std::uint64_t));
  parts.exponents = parts.weights + rounded(padded_heads * (f64 ? sizeof(double) : sizeof(float)));
  parts.values = parts.exponents + (f64 ? 0 : rounded(cells));
  parts.total = parts.values + rounded(cells * (f64            ? sizeof(double)
                                                : layout.split ? 2 * sizeof(float)
                                                               : sizeof(float)));
  return parts;
}

// The caller's memory has any alignment; the contents start at the first cache line inside.
template <class Byte>
Byte* aligned(Byte* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return memory + (rounded(address) - address);
}

bool any_nan(const std::uint8_t* codes, int count) {
  bool nan = false;
  for (int d = 0; d < count; ++d) nan |= e4m3_is_nan(codes[d]);
  return nan;
}

// Calls visit(first vector, vectors) for every group.
template <class Visit>
void for_each_group(int vectors, int max_vectors, const Visit& visit) {
  int group = max_vectors;
  for (int v = 0; v < vectors; v += group) {
    while (group > vectors - v) group /= 2;
    visit(v, group);
  }
}

void fill_group(const ScoreRow& row, int first_head, int width, double* out) {
  for (int lane = 0; lane < width; ++lane) {
    const int h = first_head + lane;
    const std::uint8_t* q = h < row.heads ? row.q + h * row.head_stride : nullptr;
    for (int d = 0; d < row.head_dim; ++d)
      out[d * width + lane] = q != nullptr ? e4m3_unit_values[q[d]] * 0x1p-1 : 0.0;  // units of 2^-9, times 2^8
  }
}

void fill_f64(const RowLayout& layout, const ScoreRow& row, std::byte* base, const Parts& parts, FillGroup fill) {
  std::uint64_t nan = 0;
  auto* weights = reinterpret_cast<double*>(base + parts.weights);
  auto* values = reinterpret_cast<double*>(base + parts.values);
  for (int h = 0; h < row.heads; ++h) {
    weights[h] = static_cast<double>(row.weights[h * row.weight_stride]);
    if (any_nan(row.q + h * row.head_stride, row.head_dim)) nan = 1;
  }
  std::memcpy(base + parts.flag, &nan, sizeof nan);
  for_each_group(parts.vectors, layout.max_vectors, [&](int first, int group) {
    const int head = first * layout.lanes;
    fill(row, head, group * layout.lanes, values + static_cast<std::ptrdiff_t>(head) * row.head_dim);
  });
}

void fill_sm90(const RowLayout& layout, const ScoreRow& row, std::byte* base, const Parts& parts) {
  auto* weights = reinterpret_cast<float*>(base + parts.weights);
  auto* values = reinterpret_cast<float*>(base + parts.values);
  auto* exponents = reinterpret_cast<std::uint8_t*>(base + parts.exponents);
  for (int h = 0; h < (row.heads + 7) / 8 * 8; ++h)
    weights[h] = h < row.heads ? row.weights[h * row.weight_stride] : -0.0F;
  const int per_vector = layout.split ? 2 * layout.lanes : layout.lanes;
  for_each_group(parts.vectors, layout.max_vectors, [&](int first, int group) {
    const std::ptrdiff_t skip = static_cast<std::ptrdiff_t>(first) * row.head_dim;
    float* out = values + skip * per_vector;
    std::uint8_t* out_exponents = exponents + skip * layout.lanes;
    for (int lane = 0; lane < group * layout.lanes; ++lane) {
      const int h = first * layout.lanes + lane;
      const std::uint8_t* q = row.q + (h < row.heads ? h : 0) * row.head_stride;
      const bool live = h < row.heads && !any_nan(q, row.head_dim);
      for (int d = 0; d < row.head_dim; ++d) {
        const float value = live ? static_cast<float>(e4m3_unit_values[q[d]]) * 0x1p-1F : 0.0F;
        float* cell = out + (d * group + lane / layout.lanes) * per_vector + lane % layout.lanes;
        if (layout.split) {
          cell[0] = value > 0 ? value : 0.0F;
          cell[layout.lanes] = value < 0 ? value : 0.0F;
        } else {
          cell[0] = value;
        }
        out_exponents[d * group * layout.lanes + lane] =
            static_cast<std::uint8_t>(value == 0 ? 0 : kExponentBias + e4m3_parts[q[d]].exponent);
      }
    }
  });
}

}  // namespace

std::size_t row_bytes(ScoreModel model, const RowLayout& layout, int heads, int head_dim) noexcept {
  return parts_of(model, layout, heads, head_dim).total + kAlign;
}

void fill_row(ScoreModel model, const RowLayout& layout, const ScoreRow& row, std::byte* memory,
              FillGroup fill) noexcept {
  const Parts parts = parts_of(model, layout, row.heads, row.head_dim);
  if (model == ScoreModel::f64) {
    fill_f64(layout, row, aligned(memory), parts, fill != nullptr ? fill : fill_group);
  } else {
    fill_sm90(layout, row, aligned(memory), parts);
  }
}

F64Row f64_row(const RowLayout& layout, int heads, int head_dim, const std::byte* memory) noexcept {
  const Parts parts = parts_of(ScoreModel::f64, layout, heads, head_dim);
  const std::byte* base = aligned(memory);
  std::uint64_t nan = 0;
  std::memcpy(&nan, base + parts.flag, sizeof nan);
  return {reinterpret_cast<const double*>(base + parts.values), reinterpret_cast<const double*>(base + parts.weights),
          nan != 0};
}

Sm90Row sm90_row(const RowLayout& layout, int heads, int head_dim, const std::byte* memory) noexcept {
  const Parts parts = parts_of(ScoreModel::sm90, layout, heads, head_dim);
  const std::byte* base = aligned(memory);
  return {reinterpret_cast<const float*>(base + parts.values),
          reinterpret_cast<const std::uint8_t*>(base + parts.exponents),
          reinterpret_cast<const float*>(base + parts.weights)};
}

int locate_block(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, KeyAddress* addresses,
                 int* places) noexcept {
  constexpr int kLine = 64;
  int valid = 0;
  for (int j = 0; j < count; ++j) {
    const KeyAddress address = keys.locate(index != nullptr ? std::int64_t{index[j]} : first + j);
    if (address.codes == nullptr) continue;
    for (int byte = 0; byte < keys.head_dim(); byte += kLine) __builtin_prefetch(address.codes + byte);
    __builtin_prefetch(address.scale);
    addresses[valid] = address;
    places[valid++] = j;
  }
  return valid;
}

}  // namespace dosa::cpu
