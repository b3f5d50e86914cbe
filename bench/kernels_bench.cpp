// The kernels of every instruction set this machine has, in resident data: useful multiply-adds against the measured
// peak, and what packing a key costs.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/dispatch.hpp"
#include "cpu/float_environment.hpp"
#include "cpu/kernels.hpp"
#include "cpu/peak.hpp"
#include "score/score.hpp"

namespace {

using namespace dosa;
using namespace dosa::cpu;

struct Memory {
  std::vector<std::byte> bytes;
  std::byte* data;
  explicit Memory(std::size_t size) : bytes(size + 64), data(bytes.data()) {
    data += (64 - reinterpret_cast<std::uintptr_t>(data) % 64) % 64;
  }
};

struct Keys {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  int head_dim;
  Keys(std::int64_t count, int d)
      : codes(static_cast<std::size_t>(count * d)), scales(static_cast<std::size_t>(count), 0.01F), head_dim(d) {
    std::mt19937_64 random(1);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>((random() & 0x87U) | (random() % 12 << 3));
  }
  [[nodiscard]] KeySource source() const {
    ContiguousKeys keys;
    const auto count = static_cast<std::int64_t>(scales.size());
    keys.codes = TensorView<const std::uint8_t, 2>::contiguous(codes.data(), {count, head_dim});
    keys.scales = TensorView<const float, 1>::contiguous(scales.data(), {count});
    return KeySource(keys);
  }
};

constexpr int kPanels = 8, kForms = 16;

enum class Kind : std::uint8_t { upper, bounds, narrow };

/// kPanels panels against one form after another, as many panels at once as the backend takes; no key reaches the
/// floor.
void screen(benchmark::State& state, const Kernels* kernels, int rows, int aggregates, int head_dim, Kind kind,
            double peak) {
  const FloatEnvironment environment;
  const int keys_per_panel = kernels->panel_keys;
  const Keys keys(kPanels * keys_per_panel, head_dim);
  std::vector<Memory> memory;
  std::vector<Panel> panels;
  for (int p = 0; p < kPanels; ++p) {
    memory.emplace_back(kernels->panel_bytes(head_dim, ScoreModel::f64));
    panels.push_back(kernels->make_panel(memory.back().data, head_dim, ScoreModel::f64));
    kernels->pack(keys.source(), nullptr, p * keys_per_panel, keys_per_panel,
                  {ScoreModel::f64, nullptr, kind != Kind::narrow, kind == Kind::narrow}, panels.back());
  }
  const std::vector<std::int8_t> integers(static_cast<std::size_t>((rows + aggregates) * head_dim), std::int8_t{64});
  std::vector<float> values(static_cast<std::size_t>(rows * head_dim), 0.5F),
      coef(static_cast<std::size_t>(rows), 0.25F);
  FormSpec spec;
  spec.head_dim = head_dim;
  spec.relu_rows = rows - aggregates;
  spec.aggregate_rows = aggregates;
  spec.rows = values.data();
  spec.coef = coef.data();
  if (kind == Kind::narrow) {
    spec.narrow = integers.data();
    spec.narrow_factor = coef.data();
  }
  std::vector<Memory> form_memory;
  std::vector<Form> forms;
  for (int f = 0; f < kForms; ++f) {
    form_memory.emplace_back(kernels->form_bytes(rows, head_dim));
    forms.push_back(kernels->make_form(spec, ScoreModel::f64, form_memory.back().data));
  }
  std::vector<float> out(static_cast<std::size_t>(2 * kPanels * keys_per_panel));
  std::vector<std::int32_t> key(static_cast<std::size_t>(kPanels * keys_per_panel));
  std::vector<ScreenRow> items;
  for (const Form& form : forms)
    items.push_back({&form,
                     INFINITY,
                     0,
                     kPanels * keys_per_panel,
                     kind == Kind::bounds,
                     {key.data(), out.data() + kPanels * keys_per_panel, out.data()}});
  const int at_once = kind == Kind::narrow ? kernels->narrow_panels : 1;
  for (auto _ : state) {
    for (int p = 0; p < kPanels; p += at_once) {
      kernels->screen(items.data(), kForms, panels.data() + p, at_once, p * keys_per_panel);
      benchmark::ClobberMemory();
    }
  }
  const double operations = 2.0 * rows * head_dim * keys_per_panel * kPanels * kForms;
  const double pairs = static_cast<double>(keys_per_panel) * kPanels * kForms;
  state.counters["GFLOP/s"] = benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] =
      benchmark::Counter(operations * 1e-9 / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["ns/pair"] =
      benchmark::Counter(pairs * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Time to pack a key: consecutive, or gathered by an ascending list with gaps, codes in the second-level cache.
void pack(benchmark::State& state, const Kernels* kernels, bool gathered, bool with_mean, bool narrow,
          ScoreModel model) {
  const FloatEnvironment environment;
  constexpr int kDim = 128;
  const int keys_per_panel = kernels->panel_keys;
  const int count = 64 * keys_per_panel;
  const Keys keys(count, kDim);
  const Memory memory(kernels->panel_bytes(kDim, model));
  Panel panel = kernels->make_panel(memory.data, kDim, model);
  std::vector<std::int32_t> index;
  std::mt19937_64 random(2);
  for (int i = 0; i < count; ++i) {
    if (random() % 8 == 0) index.push_back(i);
  }
  const int lists = static_cast<int>(index.size()) / keys_per_panel;
  const std::vector<float> mean(kDim, 0.125F);
  const PackSpec spec{model, with_mean ? mean.data() : nullptr, !narrow, narrow};
  int at = 0;
  for (auto _ : state) {
    if (gathered) {
      kernels->pack(keys.source(), index.data() + at * keys_per_panel, 0, keys_per_panel, spec, panel);
      at = (at + 1) % lists;
    } else {
      kernels->pack(keys.source(), nullptr, at * keys_per_panel, keys_per_panel, spec, panel);
      at = (at + 1) % 64;
    }
    benchmark::ClobberMemory();
  }
  state.counters["ns/key"] = benchmark::Counter(
      keys_per_panel * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Time to refine a key: bounds of 32 heads of 128 for one key in 24, ascending, of `count`, whose codes lie in the
/// second-level cache or in the third. One code in 10^4 is a zero, as in the traces.
void refine(benchmark::State& state, const Kernels* kernels, int count, ScoreModel model) {
  const FloatEnvironment environment;
  constexpr int kDim = 128, kHeads = 32;
  Keys keys(count, kDim);
  std::mt19937_64 random(4);
  for (std::uint8_t& code : keys.codes) code = random() % 10000 == 0 ? 0 : static_cast<std::uint8_t>(code | 0x08U);
  std::vector<std::int32_t> index;
  for (int i = 0; i < count; ++i) {
    if (random() % 24 == 0) index.push_back(i);
  }
  const std::vector<float> values(kHeads * kDim, 0.5F), coef(kHeads, 0.25F);
  FormSpec spec;
  spec.head_dim = kDim;
  spec.relu_rows = kHeads;
  spec.rows = values.data();
  spec.coef = coef.data();
  const Memory memory(kernels->form_bytes(kHeads, kDim));
  const Form form = kernels->make_form(spec, model, memory.data);
  std::vector<float> lower(index.size()), upper(index.size());
  for (auto _ : state) {
    kernels->gathered_bounds(form, keys.source(), index.data(), static_cast<std::int64_t>(index.size()), lower.data(),
                             upper.data());
    benchmark::ClobberMemory();
  }
  state.counters["ns/key"] =
      benchmark::Counter(static_cast<double>(index.size()) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void compress(benchmark::State& state, const Kernels* kernels, int per_thousand) {
  std::mt19937_64 random(3);
  std::vector<float> values(8192);
  for (float& v : values) v = random() % 1000 < static_cast<unsigned>(per_thousand) ? 1.0F : -1.0F;
  std::vector<std::int32_t> out(values.size() + 16);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels->positions_between(
        values.data(), values.data(), static_cast<std::int64_t>(values.size()), 0.0F, NAN, out.data()));
    benchmark::ClobberMemory();
  }
  state.counters["ns/value"] =
      benchmark::Counter(static_cast<double>(values.size()) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const IsaInfo& isa : available_isas()) {
    if (!isa.available) continue;
    const Kernels* kernels = choose(isa.isa).kernels;
    const double peak = measured_peak(isa.isa);
    const std::string prefix = std::string(name(isa.isa)) + "/";
    benchmark::AddCustomContext(prefix + "peak_gflops", std::to_string(peak));
    for (const int rows : {1, 2, 4, 8, 10, 14, 15, 16, 17, 18, 20, 22, 24, 32, 34, 64}) {
      benchmark::RegisterBenchmark((prefix + "upper/rows:" + std::to_string(rows)).c_str(), screen, kernels, rows, 0,
                                   128, Kind::upper, peak);
    }
    for (const int rows : {32, 64}) {
      benchmark::RegisterBenchmark((prefix + "bounds/rows:" + std::to_string(rows)).c_str(), screen, kernels, rows, 0,
                                   128, Kind::bounds, peak);
    }
    for (const int rows : {16, 20}) {
      benchmark::RegisterBenchmark((prefix + "upper/rows:" + std::to_string(rows) + "/aggregates:2").c_str(), screen,
                                   kernels, rows, 2, 128, Kind::upper, peak);
    }
    if (kernels->costs.narrow.block_rows > 0) {
      // Full blocks with and without aggregates, each of which takes two of a block's rows.
      for (const int rows : {16, 32}) {
        for (const int aggregates : {0, 1, 2}) {
          const std::string name =
              prefix + "narrow/rows:" + std::to_string(rows - aggregates) + "/aggregates:" + std::to_string(aggregates);
          benchmark::RegisterBenchmark(name.c_str(), screen, kernels, rows - aggregates, aggregates, 128, Kind::narrow,
                                       peak);
        }
      }
      for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
        const std::string name = prefix + "pack/consecutive/narrow" + (model == ScoreModel::sm90 ? "/sm90" : "");
        benchmark::RegisterBenchmark(name.c_str(), pack, kernels, false, false, true, model);
      }
    }
    if (kernels->gathered_bounds != nullptr) {
      for (const int count : {8192, 65536}) {
        const std::string name = prefix + "refine/" + std::to_string(count);
        benchmark::RegisterBenchmark(name.c_str(), refine, kernels, count, ScoreModel::f64);
        benchmark::RegisterBenchmark((name + "/sm90").c_str(), refine, kernels, count, ScoreModel::sm90);
      }
    }
    for (const bool gathered : {false, true}) {
      const std::string how = prefix + (gathered ? "pack/gathered" : "pack/consecutive");
      benchmark::RegisterBenchmark(how.c_str(), pack, kernels, gathered, false, false, ScoreModel::f64);
      benchmark::RegisterBenchmark((how + "/mean").c_str(), pack, kernels, gathered, true, false, ScoreModel::f64);
      benchmark::RegisterBenchmark((how + "/mean/sm90").c_str(), pack, kernels, gathered, true, false,
                                   ScoreModel::sm90);
    }
    for (const int share : {10, 100, 500}) {
      benchmark::RegisterBenchmark((prefix + "compress/per_thousand:" + std::to_string(share)).c_str(), compress,
                                   kernels, share);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
