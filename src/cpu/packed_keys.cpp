#include "cpu/packed_keys.hpp"

#include <algorithm>
#include <memory>

namespace dosa::cpu {

PackedKeys::PackedKeys(Arena& arena, const Layout& layout) noexcept : layout_(&layout) {
  if (layout.packed_panels == 0) return;
  const auto panel_bytes = static_cast<std::int64_t>(layout.kernels->narrow_panel_bytes(layout.head_dim, layout.model));
  memory_ = arena.take<std::byte>(layout.packed_panels * panel_bytes);
  states_ = arena.take<std::atomic<std::uint8_t>>(layout.packed_panels);
}

void PackedKeys::start(std::int64_t origin) noexcept {
  origin_ = origin;
  for (std::int64_t p = 0; p < layout_->packed_panels; ++p) std::construct_at(states_ + p, std::uint8_t{empty});
}

bool PackedKeys::find(const KeySource& keys, std::int64_t first, int count, Panel& panel) {
  if (layout_->packed_panels == 0 || first < origin_) return false;
  const Kernels& kernels = *layout_->kernels;
  if (count != kernels.panel_keys) return false;
  const std::int64_t number = (first - origin_) / kernels.panel_keys;
  if (number >= layout_->packed_panels || (first - origin_) % kernels.panel_keys != 0) return false;
  std::atomic<std::uint8_t>& state = states_[number];
  std::uint8_t seen = state.load(std::memory_order_acquire);
  if (seen == begun) return false;
  const std::size_t bytes = kernels.narrow_panel_bytes(layout_->head_dim, layout_->model);
  panel =
      kernels.make_narrow_panel(memory_ + static_cast<std::size_t>(number) * bytes, layout_->head_dim, layout_->model);
  panel.count = kernels.panel_keys;
  if (seen == there) return true;
  if (!state.compare_exchange_strong(seen, begun, std::memory_order_acquire)) return seen == there;
  kernels.pack(keys, nullptr, first, kernels.panel_keys, {layout_->model, nullptr, false, true}, panel);
  state.store(there, std::memory_order_release);
  return true;
}

std::span<const std::byte> PackedKeys::packed_from(std::int64_t first, int panels) const noexcept {
  if (layout_->packed_panels == 0 || first < origin_) return {};
  const Kernels& kernels = *layout_->kernels;
  const std::int64_t from = (first - origin_) / kernels.panel_keys;
  std::int64_t to = from;
  while (to < std::min(from + panels, layout_->packed_panels) && states_[to].load(std::memory_order_relaxed) == there)
    ++to;
  const std::size_t bytes = kernels.narrow_panel_bytes(layout_->head_dim, layout_->model);
  return {memory_ + static_cast<std::size_t>(from) * bytes, static_cast<std::size_t>(to - from) * bytes};
}

}  // namespace dosa::cpu
