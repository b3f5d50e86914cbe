// Bounds of DoSA's certificate for one row, key by key, from the very kernels that a call uses: for reports.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cmath>
#include <random>
#include <vector>

#include "certificate/dosa_bound.hpp"
#include "contract/row.hpp"
#include "contract/text.hpp"
#include "cpu/dispatch.hpp"
#include "problem.hpp"
#include "register.hpp"

namespace dosa::python {
namespace {

constexpr int kSampleKeys = 512;

class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes) : memory_(bytes + 64) {}
  [[nodiscard]] std::byte* data() noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> memory_;
};

/// A uniform sample of the row's keys with their head dots, as certificate::Sample wants it.
struct SampledKeys {
  std::vector<float> dots, scale, norm, centred, mean;

  SampledKeys(const Row& row, const KeySource& keys, std::uint64_t seed) {
    const auto dim = static_cast<std::size_t>(row.score.head_dim);
    const auto heads = static_cast<std::size_t>(row.score.heads);
    std::mt19937_64 random(seed);
    const Window visible = row.visible();
    std::vector<std::vector<float>> values;
    mean.assign(dim, 0.0F);
    for (int s = 0; s < kSampleKeys; ++s) {
      const auto pick = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(visible.size()));
      const KeyAddress key = keys.locate(visible.first + pick);
      std::vector<float> value(dim, 0.0F);
      for (std::size_t d = 0; d < dim && key.codes != nullptr; ++d)
        value[d] = e4m3_is_nan(key.codes[d]) ? 0.0F : static_cast<float>(e4m3_units(key.codes[d])) * 0x1p-9F;
      for (std::size_t d = 0; d < dim; ++d) mean[d] += value[d] / kSampleKeys;
      scale.push_back(key.codes == nullptr ? 0.0F : *key.scale);
      values.push_back(std::move(value));
    }
    dots.assign(heads * kSampleKeys, 0.0F);
    for (std::size_t s = 0; s < kSampleKeys; ++s) {
      double square = 0, off = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        const auto v = static_cast<double>(values[s][d]);
        square += v * v;
        off += (v - static_cast<double>(mean[d])) * (v - static_cast<double>(mean[d]));
      }
      norm.push_back(static_cast<float>(std::sqrt(square)));
      centred.push_back(static_cast<float>(std::sqrt(off)));
      for (std::size_t h = 0; h < heads; ++h) {
        const std::uint8_t* q = row.score.q + static_cast<std::ptrdiff_t>(h) * row.score.head_stride;
        float dot = 0;
        for (std::size_t d = 0; d < dim; ++d) dot += static_cast<float>(e4m3_units(q[d])) * 0x1p-9F * values[s][d];
        dots[h * kSampleKeys + s] = dot;
      }
    }
  }
};

struct Bounds {
  certificate::Choice choice;
  std::vector<float> upper;
};

Bounds bounds_of(const Inputs& inputs, std::int64_t t, std::int64_t top_k, int retained, ScoreModel model,
                 std::uint64_t seed) {
  const Row row = make_row(inputs.problem(), inputs.shape(), Options{}, t);
  const KeySource keys = key_source(inputs.problem(), row.request);
  const Window visible = row.visible();
  Bounds bounds;
  if (visible.size() <= 0) return bounds;
  const cpu::Kernels& kernels = *cpu::choose(Isa::automatic).kernels;
  const SampledKeys sampled(row, keys, seed);
  const auto dim = static_cast<std::size_t>(row.score.head_dim), heads = static_cast<std::size_t>(row.score.heads);

  certificate::RowInput input;
  input.row = row.score;
  input.model = model;
  input.arithmetic = kernels.arithmetic(row.score.head_dim);
  input.mean = sampled.mean.data();
  input.retained_heads = retained;
  input.sample.keys = kSampleKeys;
  input.sample.stride = kSampleKeys;
  input.sample.dots = sampled.dots.data();
  input.sample.scale = sampled.scale.data();
  input.sample.norm = sampled.norm.data();
  input.sample.centred = sampled.centred.data();
  input.sample.winners = static_cast<double>(top_k) / static_cast<double>(visible.size());
  AlignedBytes scratch(certificate::scratch_bytes(row.score.heads, row.score.head_dim, kSampleKeys));
  std::vector<float> rows((heads + 4) * dim), coef(heads);
  cpu::FormSpec spec;
  bounds.choice = certificate::dosa_form(
      input, {scratch.data(), certificate::scratch_bytes(row.score.heads, row.score.head_dim, kSampleKeys)},
      rows.data(), coef.data(), spec);
  if (!bounds.choice.finite) return bounds;

  AlignedBytes form_memory(kernels.form_bytes(spec.relu_rows + spec.aggregate_rows, row.score.head_dim));
  const cpu::Form form = kernels.make_form(spec, model, form_memory.data());
  AlignedBytes panel_memory(kernels.panel_bytes(row.score.head_dim, model));
  cpu::Panel panel = kernels.make_panel(panel_memory.data(), row.score.head_dim, model);
  const auto panel_keys = static_cast<std::int64_t>(kernels.panel_keys);
  bounds.upper.resize(static_cast<std::size_t>((visible.size() + panel_keys - 1) / panel_keys * panel_keys));
  for (std::int64_t at = 0; at < visible.size(); at += panel_keys) {
    const auto count = static_cast<int>(std::min(panel_keys, visible.size() - at));
    kernels.pack(keys, nullptr, visible.first + at, count, {model, sampled.mean.data()}, panel);
    kernels.upper(form, panel, bounds.upper.data() + at);
  }
  bounds.upper.resize(static_cast<std::size_t>(visible.size()));
  return bounds;
}

nb::tuple bounds(const Inputs& inputs, std::int64_t row, std::int64_t top_k, int retained_heads, std::string_view model,
                 std::uint64_t seed) {
  const Shape& shape = inputs.shape();
  if (row < 0 || row >= shape.rows)
    throw Error(ErrorKind::usage, text::format("row: found {}, wanted 0..{}", row, shape.rows - 1));
  if (shape.device.kind != DeviceKind::cpu)
    throw Error(ErrorKind::bad_input, "bounds: found arrays on a device, wanted them in host memory");
  // Everything that a call would refuse is refused here too.
  Options options;
  options.top_k = top_k;
  options.retained_heads = retained_heads;
  options.model = parse_score_model(model);
  (void)plan(shape, options);
  auto* held = new Bounds();
  const nb::capsule owner(held, [](void* owned) noexcept { delete static_cast<Bounds*>(owned); });
  {
    const nb::gil_scoped_release unlocked;
    *held = bounds_of(inputs, row, top_k, retained_heads, options.model, seed);
  }
  const std::size_t size = held->upper.size();
  return nb::make_tuple(nb::ndarray<nb::numpy, float>(held->upper.data(), {size}, owner), held->choice.retained,
                        held->choice.aggregates, held->choice.finite);
}

}  // namespace

void register_certificate(nb::module_& module) {
  module.def("bounds", &bounds, nb::arg("inputs"), nb::arg("row"), nb::arg("top_k"), nb::arg("retained_heads"),
             nb::arg("model"), nb::arg("seed"));
}

}  // namespace dosa::python
