// The keys that certified rows start refining with, for neighbouring rows of a tile at once. They share most of
// them: the union is packed once, where each row for itself would gather every one of its keys. Pays where products
// cost little beside packing (Costs::together); the bounds are those that a row alone finds, bit for bit: a key's do
// not depend on the panel it is packed into, nor on its lane.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "contract/window.hpp"
#include "cpu/layout.hpp"
#include "cpu/row_work.hpp"

namespace dosa::cpu {

/// One tile, its rows in groups of neighbours: rows have their lists (list_first_keys); mark() all tasks, decide(),
/// refine() all tasks, finish(). Tasks may run on threads of their own: each touches its own keys' part of what a group
/// shares and of a row's bounds.
class SharedRefine {
 public:
  /// `keys`: of the tile. `tasks`: about as many as threads can use. Uses marks, one bit a key and group.
  SharedRefine(const TileContext& tile, const Window& keys, std::uint64_t* marks, std::span<RowWork> works,
               std::int64_t tasks);

  /// None: no two rows have keys to refine.
  [[nodiscard]] std::int64_t tasks() const noexcept { return group_count_ * slices_; }
  /// Finds the groups' unions.
  void mark(std::int64_t task);
  /// Which groups refine together; false: none does.
  bool decide();
  /// Puts the bounds of the rows' keys into their places.
  void refine(ThreadMemory& thread, std::int64_t task) const;
  /// The rows are charged, and know that they have their bounds.
  void finish();

 private:
  struct Part {
    RowWork* work = nullptr;
    RefinedKeys refined{};
    std::int64_t count = 0;    ///< listed keys
    std::int64_t charged = 0;  ///< keys of the union in the stretches that hold a key of this row
  };
  struct Group {
    std::span<Part> parts;
    std::uint64_t* marks = nullptr;  ///< bit j: key keys_.first + j is some row's
    std::int64_t united = 0;
    bool pays = false;
  };
  class Marked;

  /// The keys of a task, which are whole stretches.
  [[nodiscard]] Window slice_of(std::int64_t task) const noexcept;
  [[nodiscard]] bool pays(const Group& group) const noexcept;

  const TileContext& tile_;
  const Kernels& kernels_;
  Window keys_;
  std::array<Part, kScreenRows> parts_{};
  std::array<Group, kScreenRows> groups_{};
  std::int64_t group_count_ = 0, slices_ = 1;  ///< slices: of every group
};

}  // namespace dosa::cpu
