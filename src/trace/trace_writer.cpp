#include "contract/text.hpp"
#include "dosa/trace.hpp"
#include "dosa/types.hpp"
#include "trace/safetensors.hpp"

namespace dosa {
namespace {

/// Appends a view of any strides in row-major order, one innermost row at a time.
template <class T, std::size_t Rank>
void append(safetensors::Writer& writer, const TensorView<const T, Rank>& view) {
  std::vector<T> buffer;
  const auto flush = [&] {
    writer.append(std::span<const T>(buffer));
    buffer.clear();
  };
  const auto walk = [&](auto&& self, const T* data, std::size_t axis) -> void {
    for (std::int64_t i = 0; i < view.shape[axis]; ++i) {
      const T* element = data + i * view.strides[axis];
      if (axis + 1 < Rank) {
        self(self, element, axis + 1);
      } else {
        buffer.push_back(*element);
      }
    }
    if (buffer.size() * sizeof(T) >= (std::size_t{1} << 20)) flush();
  };
  walk(walk, view.data, 0);
  flush();
}

}  // namespace

void write_trace(const std::filesystem::path& path, const Problem& problem,
                 const std::map<std::string, std::string>& metadata) {
  const auto* keys = std::get_if<ContiguousKeys>(&problem.keys);
  if (keys == nullptr) {
    throw Error(
        ErrorKind::bad_input,
        text::format("{}: found paged keys, wanted contiguous keys (a trace file holds no pages)", path.string()));
  }
  const std::int64_t rows = problem.q.shape[0], heads = problem.q.shape[1], head_dim = problem.q.shape[2];
  const std::int64_t n = keys->codes.shape[0];
  if (problem.weights.shape != std::array{rows, heads} || keys->codes.shape[1] != head_dim ||
      keys->scales.shape[0] != n || problem.ks.shape[0] != rows || problem.ke.shape[0] != rows) {
    throw Error(ErrorKind::bad_input,
                text::format("{}: the tensors of the problem disagree about Q, H, D or N", path.string()));
  }
  // Four-byte tensors first: they stay aligned in the file whatever the sizes of the code tensors.
  safetensors::Writer writer(path,
                             {{"k_scale", "F32", {n}},
                              {"weights", "F32", {rows, heads}},
                              {"ks", "I32", {rows}},
                              {"ke", "I32", {rows}},
                              {"k", "F8_E4M3", {n, head_dim}},
                              {"q", "F8_E4M3", {rows, heads, head_dim}}},
                             metadata);
  append(writer, keys->scales);
  append(writer, problem.weights);
  append(writer, problem.ks);
  append(writer, problem.ke);
  append(writer, keys->codes);
  append(writer, problem.q);
  writer.commit();
}

}  // namespace dosa
