#include "cuda/staging.hpp"

#include <type_traits>

#include "contract/text.hpp"

namespace dosa::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(ErrorKind::internal, text::format("{}: {}", what, cudaGetErrorString(status)));
}

Staging::~Staging() {
  for (void* memory : owned_) cudaFree(memory);
}

void* Staging::allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "device memory");
  owned_.push_back(memory);
  return memory;
}

void* Staging::upload_bytes(const void* from, std::size_t bytes) {
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(from) % 256;
  auto* const to = static_cast<std::byte*>(allocate(bytes + 256)) + offset;
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
  return to;
}

template <class T, std::size_t Rank>
TensorView<T, Rank> Staging::upload_view(const TensorView<T, Rank>& view) {
  TensorView<T, Rank> copy = view;
  copy.device = device_;
  std::int64_t before = 0, after = 1;  // elements in front of data, and from data on
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    if (view.shape[axis] == 0 || view.absent()) {
      if (!view.absent()) copy.data = static_cast<T*>(allocate(sizeof(T)));
      return copy;
    }
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
    (reach < 0 ? before : after) += reach < 0 ? -reach : reach;
  }
  copy.data =
      static_cast<T*>(upload_bytes(view.data - before, static_cast<std::size_t>(before + after) * sizeof(T))) + before;
  return copy;
}

Problem Staging::upload(const Problem& problem) {
  Problem copy = problem;
  copy.q = upload_view(problem.q);
  copy.weights = upload_view(problem.weights);
  copy.ks = upload_view(problem.ks);
  copy.ke = upload_view(problem.ke);
  copy.row_request = upload_view(problem.row_request);
  if (const auto* contiguous = std::get_if<ContiguousKeys>(&problem.keys)) {
    copy.keys = ContiguousKeys{upload_view(contiguous->codes), upload_view(contiguous->scales)};
    return copy;
  }
  PagedKeys paged = std::get<PagedKeys>(problem.keys);
  paged.block_table = upload_view(paged.block_table);
  paged.device = device_;
  if (paged.pages > 0) {
    const std::int64_t page = std::int64_t{paged.page_size} * (paged.head_dim + 4);
    paged.cache = static_cast<const std::uint8_t*>(
        upload_bytes(paged.cache, static_cast<std::size_t>((paged.pages - 1) * paged.page_stride + page)));
  }
  copy.keys = paged;
  return copy;
}

template <class T, std::size_t Rank>
TensorView<T, Rank> Staging::output(const TensorView<T, Rank>& like) {
  if (like.absent()) return like;
  std::size_t count = 1;
  for (const std::int64_t extent : like.shape) count *= static_cast<std::size_t>(extent);
  return TensorView<T, Rank>::contiguous(static_cast<T*>(allocate(count * sizeof(T))), like.shape, device_);
}
template TensorView<float, 2> Staging::output(const TensorView<float, 2>&);

Selection Staging::outputs(const Selection& selection) {
  return {output(selection.indices), output(selection.lengths), output(selection.scores)};
}

namespace {

template <class T, std::size_t Rank>
void download_view(const TensorView<T, Rank>& from, const TensorView<T, Rank>& to) {
  std::size_t count = 1;
  for (const std::int64_t extent : from.shape) count *= static_cast<std::size_t>(extent);
  if (from.absent() || count == 0) return;
  std::vector<T> dense(count);
  check(cudaMemcpy(dense.data(), from.data, count * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
  const std::int64_t columns = Rank == 2 ? from.shape[Rank - 1] : 1;
  for (std::int64_t row = 0; row < from.shape[0]; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      const T value = dense[static_cast<std::size_t>(row * columns + column)];
      if constexpr (Rank == 2) {
        *to.at(row, column) = value;
      } else {
        *to.at(row) = value;
      }
    }
}

}  // namespace

void Staging::download(const Selection& from, const Selection& to) {
  download_view(from.indices, to.indices);
  download_view(from.lengths, to.lengths);
  download_view(from.scores, to.scores);
}

void Staging::download(const TensorView<float, 2>& from, const TensorView<float, 2>& to) { download_view(from, to); }

}  // namespace dosa::cuda
