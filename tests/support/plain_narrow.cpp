#include "support/plain_narrow.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "certificate/outward.hpp"
#include "cpu/panel_kernels.hpp"
#include "score/e4m3.hpp"

namespace dosa::test {
namespace {

using namespace cpu;

Kernels base_table{};

double code_value(std::uint8_t code) { return std::ldexp(e4m3_units(code), -9); }

// Panel: the base's, or scales and features alone; then [panel_keys][D] integers, steps and residuals. Form: the
// base's, or [rows][D] integers behind their factors.

std::size_t narrow_part(int head_dim) {
  return rounded_up(static_cast<std::size_t>(base_table.panel_keys) *
                    (static_cast<std::size_t>(head_dim) + 2 * sizeof(float)));
}
std::size_t wide_part(int head_dim, ScoreModel model) { return rounded_up(base_table.panel_bytes(head_dim, model)); }
std::size_t number_part(int head_dim, ScoreModel model) {
  return rounded_up(sizeof(float) * static_cast<std::size_t>(base_table.panel_keys) *
                    static_cast<std::size_t>(1 + feature_count(model, head_dim)));
}
void place_narrow(Panel& panel, std::byte* memory) {
  panel.narrow = memory;
  panel.step = reinterpret_cast<float*>(memory + base_table.panel_keys * panel.head_dim);
  panel.residual = panel.step + base_table.panel_keys;
}

std::size_t panel_bytes(int head_dim, ScoreModel model) { return wide_part(head_dim, model) + narrow_part(head_dim); }
Panel make_panel(std::byte* memory, int head_dim, ScoreModel model) {
  Panel panel = base_table.make_panel(memory, head_dim, model);
  place_narrow(panel, memory + wide_part(head_dim, model));
  return panel;
}
std::size_t narrow_panel_bytes(int head_dim, ScoreModel model) {
  return number_part(head_dim, model) + narrow_part(head_dim);
}
Panel make_narrow_panel(std::byte* memory, int head_dim, ScoreModel model) {
  Panel panel;
  panel.scale = reinterpret_cast<float*>(memory);
  panel.features = panel.scale + base_table.panel_keys;
  panel.head_dim = head_dim;
  panel.feature_count = feature_count(model, head_dim);
  place_narrow(panel, memory + number_part(head_dim, model));
  return panel;
}

/// A panel of the base's in memory of its own.
struct OwnPanel {
  std::vector<std::byte> memory;
  Panel panel;
  OwnPanel(int head_dim, ScoreModel model) : memory(base_table.panel_bytes(head_dim, model) + 64) {
    auto* const aligned = reinterpret_cast<std::byte*>(rounded_up(reinterpret_cast<std::uintptr_t>(memory.data())));
    panel = base_table.make_panel(aligned, head_dim, model);
  }
};

void pack(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, const PackSpec& spec,
          Panel& panel) {
  if (spec.wide) {
    base_table.pack(keys, index, first, count, spec, panel);
  } else {
    OwnPanel own(panel.head_dim, spec.model);
    base_table.pack(keys, index, first, count, spec, own.panel);
    std::copy_n(own.panel.scale, base_table.panel_keys, panel.scale);
    std::copy_n(own.panel.features, base_table.panel_keys * panel.feature_count, panel.features);
    panel.count = count;
  }
  if (!spec.narrow) return;
  for (int lane = 0; lane < base_table.panel_keys; ++lane) {
    std::byte* const integers = panel.narrow + lane * panel.head_dim;
    std::memset(integers, 0, static_cast<std::size_t>(panel.head_dim));
    panel.step[lane] = 1;
    panel.residual[lane] = 0;
    const KeyAddress at = lane < count ? keys.locate(index != nullptr ? index[lane] : first + lane) : KeyAddress{};
    if (at.codes == nullptr) continue;
    const NarrowKey key = narrow_key(at.codes, panel.head_dim);
    for (int d = 0; d < panel.head_dim; ++d)
      integers[d] = static_cast<std::byte>(static_cast<std::int8_t>(key.integers[static_cast<std::size_t>(d)]));
    panel.step[lane] = static_cast<float>(key.step);
    panel.residual[lane] = certificate::round_up(key.residual * (1 + 0x1p-40));
  }
}

std::size_t form_bytes(int rows, int head_dim) {
  const auto most = static_cast<std::size_t>(rows) + 4;  // an aggregate has two
  return std::max(base_table.form_bytes(rows, head_dim), most * (sizeof(float) + static_cast<std::size_t>(head_dim)));
}
Form make_form(const FormSpec& spec, ScoreModel model, std::byte* memory) {
  if (spec.narrow == nullptr) return base_table.make_form(spec, model, memory);
  const Form form = form_header(spec, model, memory);
  const auto factors = static_cast<std::size_t>(spec.relu_rows + spec.aggregate_rows) * sizeof(float);
  if (factors == 0) return form;
  std::memcpy(memory, spec.narrow_factor, factors);
  std::memcpy(memory + factors, spec.narrow,
              static_cast<std::size_t>((spec.relu_rows + 2 * spec.aggregate_rows) * spec.head_dim));
  return form;
}

struct Bounds {
  float lower, upper;
};
Bounds bounds_of(const Form& form, const Panel& panel, int lane) {
  const auto* const factors = reinterpret_cast<const float*>(form.data);
  const std::byte* const rows =
      form.data + sizeof(float) * static_cast<std::size_t>(form.relu_rows + form.aggregate_rows);
  const std::byte* const key = panel.narrow + lane * form.head_dim;
  const auto dot = [&](int row) {
    std::int32_t sum = 0;
    for (int d = 0; d < form.head_dim; ++d)
      sum += static_cast<std::int8_t>(rows[row * form.head_dim + d]) * static_cast<std::int8_t>(key[d]);
    return static_cast<float>(sum);
  };
  float sum = 0, largest = form.aggregate_floor;
  for (int j = 0; j < form.relu_rows; ++j) sum += factors[j] * std::max(dot(j), 0.0F);
  for (int a = 0; a < form.aggregate_rows; ++a) {
    const int high = form.relu_rows + 2 * a;
    largest = std::max(largest, factors[form.relu_rows + a] * (128.0F * dot(high) + dot(high + 1)));
  }
  const auto feature = [&](int f) { return panel.features[f * base_table.panel_keys + lane]; };
  float allowance = form.constant + form.allow_residual * panel.residual[lane];
  for (int f = 0; f < form.feature_count; ++f) {
    if (f != kCentred) allowance += form.allow[f] * feature(f);
  }
  const float scale = panel.scale[lane];
  const auto slack = [](float value) { return std::fabs(value) * 0x1p-21F + 0x1p-145F; };
  const float most = scale * (panel.step[lane] * (sum - largest) + allowance), upper = most + slack(most);
  const float least = scale * (panel.step[lane] * sum - allowance), lower = least - slack(least);
  const bool bounded = scale <= form.scale_limit;
  return {bounded && std::isfinite(lower) ? lower : -INFINITY, bounded && std::isfinite(upper) ? upper : INFINITY};
}

void upper(const Form& form, const Panel& panel, float* upper) {
  if (!form.narrow) return base_table.upper(form, panel, upper);
  for (int lane = 0; lane < panel.count; ++lane) upper[lane] = bounds_of(form, panel, lane).upper;
}
void bounds(const Form& form, const Panel& panel, float* lower, float* upper) {
  if (!form.narrow) return base_table.bounds(form, panel, lower, upper);
  for (int lane = 0; lane < panel.count; ++lane) {
    const Bounds of_key = bounds_of(form, panel, lane);
    lower[lane] = of_key.lower;
    upper[lane] = of_key.upper;
  }
}

void screen(ScreenRow* rows, int count, const Panel* panels, int panel_count, std::int32_t base) {
  for (ScreenRow* row = rows; row != rows + count; ++row) {
    if (!row->form->narrow) {
      base_table.screen(row, 1, panels, panel_count, base);
      continue;
    }
    for (int p = 0; p < panel_count; ++p) {
      const std::int32_t first_of_panel = base + p * base_table.panel_keys;
      const SeenLanes seen(*row, first_of_panel, panels[p].count);
      if (seen.none()) continue;
      float low[64], high[64];
      bounds(*row->form, panels[p], low, high);
      row->count +=
          base_table.keep_not_below({nullptr, row->lower ? low + seen.first : nullptr, high + seen.first},
                                    seen.last - seen.first, row->floor, first_of_panel + seen.first, next_place(*row));
    }
  }
}

void gathered_bounds(const Form& form, const KeySource& keys, const std::int32_t* index, std::int64_t count,
                     float* lower, float* upper) {
  const ScoreModel model = form.feature_count == kModel ? ScoreModel::f64 : ScoreModel::sm90;
  OwnPanel own(form.head_dim, model);
  for (std::int64_t done = 0; done < count; done += base_table.panel_keys) {
    const std::int64_t some = std::min<std::int64_t>(base_table.panel_keys, count - done);
    float low[64], high[64];
    base_table.pack(keys, index + done, 0, static_cast<int>(some), {model, nullptr}, own.panel);
    base_table.bounds(form, own.panel, low, high);
    std::copy_n(low, some, lower + done);
    std::copy_n(high, some, upper + done);
  }
}

}  // namespace

NarrowKey narrow_key(const std::uint8_t* codes, int head_dim) {
  NarrowKey key;
  double largest = 0, lost = 0;
  for (int d = 0; d < head_dim; ++d) {
    if (!e4m3_is_nan(codes[d])) largest = std::max(largest, std::fabs(code_value(codes[d])));
  }
  // A subnormal largest code is as small as the smallest normal one would be.
  key.step = std::ldexp(1.0, std::max(largest > 0 ? std::ilogb(largest) : -6, -6) - 6);
  for (int d = 0; d < head_dim; ++d) {
    const double x = e4m3_is_nan(codes[d]) ? 0 : code_value(codes[d]);
    const double integer = std::round(x / key.step), left = x - key.step * integer;
    key.integers.push_back(static_cast<int>(integer));
    lost += left * left;
  }
  key.residual = std::sqrt(lost);
  return key;
}

Kernels with_plain_narrow(const Kernels& base) {
  base_table = base;
  Kernels table = base;
  table.isa = Isa::amx;
  table.panel_bytes = panel_bytes;
  table.make_panel = make_panel;
  table.narrow_panel_bytes = narrow_panel_bytes;
  table.make_narrow_panel = make_narrow_panel;
  table.pack = pack;
  table.form_bytes = form_bytes;
  table.make_form = make_form;
  table.upper = upper;
  table.bounds = bounds;
  table.screen = screen;
  table.gathered_bounds = gathered_bounds;
  table.costs = {.refine = 4, .key = 0.38, .row = 4600, .narrow = {.block_rows = 16, .block = 0.24}};
  table.tile_rows = 32;
  table.narrow_panels = kMostPanels;
  return table;
}

}  // namespace dosa::test
