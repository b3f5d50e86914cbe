#include "dosa/trace.hpp"

#include <algorithm>
#include <cstring>

#include "contract/text.hpp"
#include "dosa/types.hpp"
#include "trace/safetensors.hpp"

namespace dosa {
namespace {

constexpr std::int64_t kMaxKeys = std::int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::bad_input, text::format("{}: {}", file, what));
}

/// Sizes come from q and k; the other tensors must agree with them.
Problem read_problem(const safetensors::File& file, std::vector<std::shared_ptr<const void>>& owners) {
  const auto& q = file.require("q", "F8_E4M3", {{"Q"}, {"H"}, {"D"}});
  const std::int64_t rows = q.shape[0], heads = q.shape[1], head_dim = q.shape[2];
  if (heads < 1 || heads > 128) {
    refuse(file.name(), text::format("tensor \"q\": found {}, wanted F8_E4M3 [Q,H,D] with H in 1..128", describe(q)));
  }
  if (head_dim < 32 || head_dim > 256 || head_dim % 32 != 0) {
    refuse(
        file.name(),
        text::format("tensor \"q\": found {}, wanted F8_E4M3 [Q,H,D] with D a multiple of 32 in 32..256", describe(q)));
  }
  const auto& k = file.require("k", "F8_E4M3", {{"N"}, {"D", head_dim}});
  const std::int64_t keys = k.shape[0];
  if (keys >= kMaxKeys) {
    refuse(file.name(), text::format("tensor \"k\": found {}, wanted F8_E4M3 [N,D] with N below 2^31", describe(k)));
  }
  const auto& k_scale = file.require("k_scale", "F32", {{"N", keys}});
  const auto& weights = file.require("weights", "F32", {{"Q", rows}, {"H", heads}});
  const auto& ks = file.require("ks", "I32", {{"Q", rows}});
  const auto& ke = file.require("ke", "I32", {{"Q", rows}});

  using Codes = const std::uint8_t;
  ContiguousKeys contiguous;
  contiguous.codes = TensorView<Codes, 2>::contiguous(file.data<std::uint8_t>(k, owners), {keys, head_dim});
  contiguous.scales = TensorView<const float, 1>::contiguous(file.data<float>(k_scale, owners), {keys});
  Problem problem;
  problem.q = TensorView<Codes, 3>::contiguous(file.data<std::uint8_t>(q, owners), {rows, heads, head_dim});
  problem.weights = TensorView<const float, 2>::contiguous(file.data<float>(weights, owners), {rows, heads});
  problem.keys = contiguous;
  problem.ks = TensorView<const std::int32_t, 1>::contiguous(file.data<std::int32_t>(ks, owners), {rows});
  problem.ke = TensorView<const std::int32_t, 1>::contiguous(file.data<std::int32_t>(ke, owners), {rows});
  return problem;
}

/// Rows of a view whose rows are contiguous, copied into memory that `owners` keeps.
template <class T, std::size_t Rank>
TensorView<const T, Rank> take_rows(const TensorView<const T, Rank>& from, std::span<const std::int64_t> rows,
                                    std::vector<std::shared_ptr<const void>>& owners) {
  auto shape = from.shape;
  shape[0] = static_cast<std::int64_t>(rows.size());
  std::size_t row_size = 1;
  for (std::size_t axis = 1; axis < Rank; ++axis) row_size *= static_cast<std::size_t>(shape[axis]);
  std::shared_ptr<T[]> copy(new T[std::max<std::size_t>(rows.size() * row_size, 1)]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(copy.get() + i * row_size, from.at(rows[i]), row_size * sizeof(T));
  }
  owners.push_back(copy);
  return TensorView<const T, Rank>::contiguous(copy.get(), shape);
}

}  // namespace

Trace Trace::open(const std::filesystem::path& path) {
  const auto file = safetensors::File::open(path);
  Trace trace;
  trace.problem_ = read_problem(file, trace.owners_);
  trace.metadata_ = file.metadata();
  trace.name_ = file.name();
  return trace;
}

Trace Trace::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  const auto file = safetensors::File::from_bytes(bytes, name);
  Trace trace;
  trace.problem_ = read_problem(file, trace.owners_);
  trace.metadata_ = file.metadata();
  trace.name_ = name;
  return trace;
}

Trace Trace::rows(std::span<const std::int64_t> rows) const {
  const std::int64_t available = problem_.q.shape[0];
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= available) {
      throw Error(ErrorKind::usage,
                  text::format("{}: row {} was asked for, wanted 0 <= row < {}", name_, row, available));
    }
  }
  Trace trace;
  trace.metadata_ = metadata_;
  trace.name_ = name_;
  trace.owners_ = owners_;
  trace.problem_ = problem_;
  trace.problem_.q = take_rows(problem_.q, rows, trace.owners_);
  trace.problem_.weights = take_rows(problem_.weights, rows, trace.owners_);
  trace.problem_.ks = take_rows(problem_.ks, rows, trace.owners_);
  trace.problem_.ke = take_rows(problem_.ke, rows, trace.owners_);
  return trace;
}

}  // namespace dosa
