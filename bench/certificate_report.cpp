// Survival of DoSA's certificate at the true threshold, by budget r, on traces: what docs/certificate.md and
// docs/benchmarks.md quote. Rows: the last of each run of 16 consecutive positions, as the published tables take them.
//   certificate_report [--model f64|sm90] [--top-k K] [--rows N] [--sample keys] [--ablate name] TRACE...

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "certificate/dosa_bound.hpp"
#include "certificate/row.hpp"
#include "contract/text.hpp"
#include "dosa/trace.hpp"
#include "score/e4m3.hpp"

namespace {

using namespace dosa;

struct KeyTable {
  std::int64_t count = 0;
  int dim = 0;
  std::vector<float> by_dim;           ///< [D][N]
  std::vector<float> scale, features;  ///< features [f][N]
  std::vector<float> mean;
  const std::uint8_t* codes = nullptr;
};

KeyTable load_keys(const ContiguousKeys& source, ScoreModel model) {
  KeyTable keys;
  keys.count = source.codes.shape[0];
  keys.dim = static_cast<int>(source.codes.shape[1]);
  keys.codes = source.codes.data;
  const auto n = static_cast<std::size_t>(keys.count), dim = static_cast<std::size_t>(keys.dim);
  keys.by_dim.resize(n * dim);
  keys.scale.resize(n);
  std::vector<double> mean(dim);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t d = 0; d < dim; ++d) {
      const float value = static_cast<float>(e4m3_unit_values[keys.codes[i * dim + d]]) * 0x1p-9F;
      keys.by_dim[d * n + i] = value;
      mean[d] += static_cast<double>(value) / static_cast<double>(n);
    }
    keys.scale[i] = source.scales.data[i];
  }
  keys.mean.assign(mean.begin(), mean.end());
  const int features = cpu::feature_count(model, keys.dim);
  keys.features.resize(static_cast<std::size_t>(features) * n);
  for (std::size_t i = 0; i < n; ++i) {
    double square = 0, centred = 0, power = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const auto value = static_cast<double>(keys.by_dim[d * n + i]);
      if (model == ScoreModel::sm90 && d % 32 == 0) {
        keys.features[(cpu::kModel + 2 * (d / 32) + 1) * n + i] = static_cast<float>(std::sqrt(square) * (1 + 1e-7));
        power = 0;
      }
      square += value * value;
      const double off = value - static_cast<double>(keys.mean[d]);
      centred += off * off;
      if (value != 0) power = std::max(power, std::max(0x1p-6, std::ldexp(1.0, std::ilogb(value))));
      if (model == ScoreModel::sm90 && d % 32 == 31)
        keys.features[(cpu::kModel + 2 * (d / 32)) * n + i] = static_cast<float>(power);
    }
    keys.features[cpu::kNorm * n + i] = static_cast<float>(std::sqrt(square) * (1 + 1e-7));
    keys.features[cpu::kCentred * n + i] = static_cast<float>(std::sqrt(centred) * (1 + 1e-7));
  }
  return keys;
}

void dot_row(const KeyTable& keys, const float* row, std::int64_t visible, float* out) {
  std::fill_n(out, visible, 0.0F);
  for (int d = 0; d < keys.dim; ++d) {
    const float q = row[d];
    const float* k = keys.by_dim.data() + static_cast<std::ptrdiff_t>(d) * keys.count;
    for (std::int64_t i = 0; i < visible; ++i) out[i] += q * k[i];
  }
}

struct Totals {
  double survival = 0, cost = 0, aggregates = 0, retained = 0, microseconds = 0, predicted = 0;
  int rows = 0;
};

}  // namespace

int main(int argc, char** argv) {
  ScoreModel model = ScoreModel::f64;
  int top_k = 2048, most_rows = 8, sample_keys = 256, seed_keys = 0;
  Ablation ablation;
  std::vector<std::string> traces;
  for (int a = 1; a < argc; ++a) {
    const std::string word = argv[a];
    const auto next = [&] { return std::string(argv[++a]); };
    if (word == "--model")
      model = parse_score_model(next());
    else if (word == "--top-k")
      top_k = std::stoi(next());
    else if (word == "--rows")
      most_rows = std::stoi(next());
    else if (word == "--sample")
      sample_keys = std::stoi(next());
    else if (word == "--seeds")
      seed_keys = std::stoi(next());
    else if (word == "--ablate") {
      const std::string name = next();
      if (name == "projection")
        ablation.projection = false;
      else if (name == "joint")
        ablation.joint_residual = false;
      else if (name == "centred")
        ablation.centred = false;
      else if (name == "aggregate")
        ablation.aggregate = false;
      else if (name == "second")
        ablation.second_aggregate = false;
      else if (name == "half")
        ablation.half_linear = false;
      else if (name == "absolute")
        ablation.absolute_form = true;
      else
        return 2;
    } else
      traces.push_back(word);
  }
  for (const std::string& path : traces) {
    const Trace trace = Trace::open(path);
    const Problem& problem = trace.problem();
    const auto& contiguous = std::get<ContiguousKeys>(problem.keys);
    const KeyTable keys = load_keys(contiguous, model);
    const auto n = static_cast<std::size_t>(keys.count);
    const int heads = static_cast<int>(problem.q.shape[1]), dim = keys.dim;
    const int features = cpu::feature_count(model, dim);
    std::vector<int> budgets;
    for (const int r : {8, 10, 12, 14, 16, 18, 20, 24}) budgets.push_back(heads == 64 ? 2 * r : r);
    budgets.push_back(0);  // chosen by the sample
    std::vector<Totals> totals(budgets.size());
    double allowance = 0, positive_heads = 0, share = 0;
    int rows_done = 0;

    std::vector<float> dots(static_cast<std::size_t>(heads) * n), score(n), upper(n), aggregate(n), best(n);
    std::vector<float> rows(static_cast<std::size_t>(heads + 4) * static_cast<std::size_t>(dim)),
        coef(static_cast<std::size_t>(heads));
    std::vector<float> values(rows.size());
    const std::int64_t runs = problem.q.shape[0] / 16;
    for (std::int64_t run = 0; run < most_rows && run < runs; ++run) {
      const std::int64_t t = (run * runs / std::min<std::int64_t>(most_rows, runs)) * 16 + 15;
      const std::int64_t visible = std::min<std::int64_t>(*problem.ke.at(t), keys.count);
      const ScoreRow row{
          problem.q.at(t), problem.q.strides[1], problem.weights.at(t), problem.weights.strides[1], heads, dim};
      certificate::RowFacts facts;
      certificate::read_row(row, model, cpu::portable_kernels()->loops, values.data(), facts);
      std::fill_n(score.begin(), visible, 0.0F);
      for (int h = 0; h < heads; ++h) {
        float* out = dots.data() + static_cast<std::size_t>(h) * n;
        dot_row(keys, values.data() + h * dim, visible, out);
        const auto w = static_cast<float>(facts.weight[h]);
        for (std::int64_t i = 0; i < visible; ++i) score[static_cast<std::size_t>(i)] += w * std::max(out[i], 0.0F);
        positive_heads += w > 0 ? 1 : 0;
      }
      double mean = 0, square = 0;
      for (std::int64_t i = 0; i < visible; ++i) {
        auto& s = score[static_cast<std::size_t>(i)];
        s *= keys.scale[static_cast<std::size_t>(i)];
        mean += static_cast<double>(s);
        square += static_cast<double>(s) * static_cast<double>(s);
      }
      mean /= static_cast<double>(visible);
      const double deviation = std::sqrt(square / static_cast<double>(visible) - mean * mean);
      // tau*: the model's own bits near the K-th approximate score.
      std::vector<float> sorted(score.begin(), score.begin() + visible);
      std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
      const float near = sorted[static_cast<std::size_t>(top_k - 1)] - static_cast<float>(0.02 * deviation);
      std::vector<float> exact;
      for (std::int64_t i = 0; i < visible; ++i) {
        if (score[static_cast<std::size_t>(i)] >= near) {
          exact.push_back(dosa::score(model, row, keys.codes + i * dim, keys.scale[static_cast<std::size_t>(i)]));
        }
      }
      std::nth_element(exact.begin(), exact.begin() + (top_k - 1), exact.end(), std::greater<>());
      const float tau = exact[static_cast<std::size_t>(top_k - 1)];
      share += static_cast<double>(top_k) / static_cast<double>(visible);

      // The sample the pipeline would take.
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      std::vector<float> sample_dots, scale, norm, centred;
      std::vector<std::int64_t> picked;
      if (seed_keys > 0) {
        std::vector<std::int64_t> order(static_cast<std::size_t>(visible));
        std::iota(order.begin(), order.end(), 0);
        std::nth_element(order.begin(), order.begin() + top_k, order.end(), [&](std::int64_t a, std::int64_t b) {
          return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
        });
        for (int s = 0; s < seed_keys; ++s)
          picked.push_back(order[static_cast<std::size_t>(s) * static_cast<std::size_t>(top_k) /
                                 static_cast<std::size_t>(seed_keys)]);
      }
      for (int s = 0; s < sample_keys; ++s)
        picked.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(visible)));
      for (const std::int64_t i : picked) {
        scale.push_back(keys.scale[static_cast<std::size_t>(i)]);
        norm.push_back(keys.features[static_cast<std::size_t>(i)]);
        centred.push_back(keys.features[n + static_cast<std::size_t>(i)]);
      }
      for (int h = 0; h < heads; ++h) {
        for (const std::int64_t i : picked)
          sample_dots.push_back(dots[static_cast<std::size_t>(h) * n + static_cast<std::size_t>(i)]);
      }
      const int picked_count = static_cast<int>(picked.size());
      std::vector<std::byte> scratch(certificate::scratch_bytes(heads, dim, picked_count));

      for (std::size_t b = 0; b < budgets.size(); ++b) {
        certificate::RowInput input{
            row, model, {(dim + 4) * 0x1p-24, 0, 0x1p-23}, keys.mean.data(), ablation, budgets[b], {}, 1.4};
        input.sample = {
            picked_count, seed_keys,   picked_count,   sample_dots.data(),
            scale.data(), norm.data(), centred.data(), static_cast<double>(top_k) / static_cast<double>(visible)};
        cpu::FormSpec spec;
        const auto start = std::chrono::steady_clock::now();
        const certificate::Choice choice = certificate::dosa_form(input, scratch, rows.data(), coef.data(), spec);
        const double micro =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        if (!choice.finite) return 1;
        std::fill_n(upper.begin(), visible, spec.constant);
        for (int j = 0; j < spec.relu_rows; ++j) {
          const float* wanted = spec.rows + j * dim;
          int h = 0;
          while (facts.weight[h] == 0 ||
                 std::memcmp(values.data() + h * dim, wanted, sizeof(float) * static_cast<std::size_t>(dim)) != 0)
            ++h;
          const float* in = dots.data() + static_cast<std::size_t>(h) * n;
          for (std::int64_t i = 0; i < visible; ++i)
            upper[static_cast<std::size_t>(i)] += spec.coef[j] * std::max(in[i], 0.0F);
        }
        std::fill_n(best.begin(), visible, spec.aggregate_rows > 0 ? spec.aggregate_floor : 0.0F);
        for (int a = 0; a < spec.aggregate_rows; ++a) {
          dot_row(keys, spec.rows + (spec.relu_rows + a) * dim, visible, aggregate.data());
          for (std::int64_t i = 0; i < visible; ++i)
            best[static_cast<std::size_t>(i)] =
                std::max(best[static_cast<std::size_t>(i)], aggregate[static_cast<std::size_t>(i)]);
        }
        std::int64_t alive = 0;
        double model_part = 0;
        for (std::int64_t i = 0; i < visible; ++i) {
          const auto k = static_cast<std::size_t>(i);
          float allow = 0;
          for (int f = 0; f < features; ++f)
            allow += spec.allow[f] * keys.features[static_cast<std::size_t>(f) * n + k];
          model_part += static_cast<double>(allow * keys.scale[k]);
          if (spec.has_alternative)
            allow +=
                std::min(spec.alt_norm * keys.features[k], spec.alt_mean + spec.alt_centred * keys.features[n + k]);
          const float x = keys.scale[k] * (upper[k] - best[k] + allow);
          alive += x + std::fabs(x) * 0x1p-21F < tau ? 0 : 1;
        }
        Totals& total = totals[b];
        const double survival = static_cast<double>(alive) / static_cast<double>(visible);
        total.survival += survival;
        total.cost += (choice.retained + choice.aggregates) / static_cast<double>(heads) + survival;
        total.aggregates += choice.aggregates;
        total.retained += choice.retained;
        total.predicted += choice.survival;
        total.microseconds += micro;
        ++total.rows;
        if (b == 0) allowance += model_part / static_cast<double>(visible) / deviation;
      }
      ++rows_done;
    }
    text::print(stdout, "{}\n  model {}  rows {}  positives {:.1f}  K/n {:.4f}  allowance {:.4f} std(score)\n",
                trace.name(), name(model), rows_done, positive_heads / rows_done, share / rows_done,
                allowance / rows_done);
    for (std::size_t b = 0; b < budgets.size(); ++b) {
      const Totals& total = totals[b];
      text::print(
          stdout,
          "  r {:>5}  retained {:5.1f}  aggregates {:.1f}  survival {:.4f}  predicted {:.4f}  dots {:.3f}  choice "
          "{:.1f} us\n",
          budgets[b] == 0 ? "auto" : std::to_string(budgets[b]), total.retained / total.rows,
          total.aggregates / total.rows, total.survival / total.rows, total.predicted / total.rows,
          total.cost / total.rows, total.microseconds / total.rows);
    }
  }
  return 0;
}
