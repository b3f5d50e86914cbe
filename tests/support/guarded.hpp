// Memory whose neighbourhood is watched: unreadable pages at both ends, canaries in the slack between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dosa/plan.hpp"
#include "support/oracle.hpp"

namespace dosa::test {

/// `bytes` bytes that end (up to the alignment asked for) at an unreadable page, or begin right behind one.
class GuardedBuffer {
 public:
  enum class Side : std::uint8_t { end, begin };
  /// address % 64 == offset where Side::begin; Side::end ends at most `align` - 1 bytes before the guard page.
  GuardedBuffer(std::size_t bytes, Side side, std::size_t align, std::size_t offset = 0);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  void fill(std::uint8_t value) noexcept;
  /// From now on a write faults.
  void freeze() noexcept;
  /// The first slack byte that was overwritten, in words; nothing where all are intact.
  [[nodiscard]] std::optional<std::string> damage() const;

 private:
  std::byte* map_ = nullptr;
  std::size_t map_bytes_ = 0, page_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A copy of a problem's tensors (strides kept) in frozen, guarded memory. Bytes in stride gaps and slack are NaN codes
/// and NaN scales. `misalignment` 0..15 shifts the code tensors; F32 and I32 keep their alignment of 4.
class GuardedProblem {
 public:
  GuardedProblem(const Problem& original, GuardedBuffer::Side side, std::size_t misalignment);
  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] std::optional<std::string> damage() const;

 private:
  template <class T, std::size_t Rank>
  void move(TensorView<const T, Rank>& view, GuardedBuffer::Side side, std::size_t misalignment);
  Problem problem_;
  std::vector<GuardedBuffer> buffers_;
};

struct Surroundings {
  GuardedBuffer::Side side = GuardedBuffer::Side::end;
  std::size_t workspace_offset = 1;    ///< the workspace begins at 64 n + this
  std::uint8_t workspace_fill = 0xcd;  ///< what the workspace holds before the call
  std::int64_t row_gap = 3;            ///< canary slots between the rows of the outputs
  std::vector<std::byte>* carry = nullptr;
};

/// plan + run with exactly plan-sized, poisoned memory and watched outputs. Adds test failures (and names `what`) where
/// anything outside the outputs was written.
[[nodiscard]] Result run_guarded(const Problem& problem, const Options& options, const std::string& what,
                                 const Surroundings& around = {}, Stats* stats = nullptr);

}  // namespace dosa::test
