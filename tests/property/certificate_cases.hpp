// One row against one key: what attacks on the certificate's theorems are made of, stored and replayed as.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "certificate/assemble.hpp"
#include "certificate/dosa_bound.hpp"
#include "certificate/narrow.hpp"
#include "certificate/outward.hpp"
#include "cpu/kernels.hpp"
#include "score/e4m3.hpp"
#include "score/score.hpp"
#include "support/plain_narrow.hpp"

namespace dosa::test {

using Codes = std::vector<std::uint8_t>;

inline float code_value(std::uint8_t code) { return static_cast<float>(e4m3_unit_values[code]) * 0x1p-9F; }

/// E4M3 code next to a value (ties anywhere): only generators use it.
inline std::uint8_t nearest_code(double value) {
  const double size = std::fabs(value);
  unsigned code = 0;
  if (!(size < 448)) {
    code = 0x7e;
  } else if (size > 0x1p-10) {
    const int exponent = std::max(std::ilogb(size), -6);
    const auto steps = static_cast<unsigned>(std::lround(std::ldexp(size, 3 - exponent)));
    code = exponent == -6 ? steps : static_cast<unsigned>(exponent + 6) * 8 + steps;
    code = std::min(code, 0x7eU);
  }
  return static_cast<std::uint8_t>(value < 0 ? code | 0x80U : code);
}

struct Case {
  ScoreModel model = ScoreModel::f64;
  bool dense = false;   ///< dense_form's bound, both sides; else dosa_form's with `retained` heads
  bool narrow = false;  ///< in integers of a byte (T11)
  int heads = 0, dim = 32, retained = 0;
  Ablation ablation;
  std::uint64_t sides = 0;           ///< bit h: head h is active on the fake sample that chooses the aggregate
  Codes q, key;                      ///< [H][D], [D]
  std::vector<float> weights, mean;  ///< mean: [D] or empty
  float scale = 1;

  [[nodiscard]] ScoreRow row() const { return {q.data(), dim, weights.data(), 1, heads, dim}; }
  [[nodiscard]] float score() const { return dosa::score(model, row(), key.data(), scale); }
};

/// What a mutant of the certificate leaves out.
enum class Drop { nothing, residual, mean, evaluation, model, rounding, narrow_rows, narrow_key };

/// A form with the memory behind it.
struct BuiltForm {
  bool finite = false;
  cpu::FormSpec spec;
  std::vector<float> rows, coef, factors;
  std::vector<std::int8_t> integers;
};

inline constexpr cpu::Arithmetic scalar_arithmetic(int dim) { return {(dim + 4) * 0x1p-24, 0, 0x1p-23}; }

inline BuiltForm build(const Case& c, const cpu::Arithmetic& arithmetic, Drop drop = Drop::nothing) {
  BuiltForm form;
  const auto h = static_cast<std::size_t>(c.heads), d = static_cast<std::size_t>(c.dim);
  form.rows.resize((h + 4) * d);
  form.coef.resize(h);
  form.integers.resize((h + 4) * d);
  form.factors.resize(h + 4);
  const certificate::NarrowTarget target =
      c.narrow ? certificate::NarrowTarget{form.integers.data(), form.factors.data()} : certificate::NarrowTarget{};
  certificate::RowInput input{c.row(),    c.model,    arithmetic, c.mean.empty() ? nullptr : c.mean.data(),
                              c.ablation, c.retained, {},         1.4};
  constexpr int kSample = 2;  // one key for each aggregate: random majority first, winners after
  std::vector<float> dots(h * kSample), ones(kSample, 1.0F);
  for (std::size_t i = 0; i < h; ++i) {
    dots[i * kSample] = (c.sides >> (i % 64) & 1U) != 0 ? 1.0F : -1.0F;
    dots[i * kSample + 1] = (c.sides >> ((i * 7 + 3) % 64) & 1U) != 0 ? 1.0F : -1.0F;
  }
  input.sample = {kSample, 0, kSample, dots.data(), ones.data(), ones.data(), ones.data(), 0.5};
  input.narrow = {16, 0.25};
  input.narrow_target = target;
  std::vector<std::byte> scratch(certificate::scratch_bytes(c.heads, c.dim, kSample));
  const int features = cpu::feature_count(c.model, c.dim);

  if (drop == Drop::nothing) {
    if (c.narrow) input.measured = certificate::measure(input, scratch);
    form.finite = c.dense
                      ? certificate::dense_form(input, form.rows.data(), form.coef.data(), form.spec, target)
                      : certificate::dosa_form(input, scratch, form.rows.data(), form.coef.data(), form.spec).finite;
    return form;
  }
  if (c.dense) input.retained_heads = c.heads;
  certificate::Assembly assembly = certificate::assemble(input, scratch);
  if (!assembly.choice.finite) return form;
  cpu::Arithmetic used = arithmetic;
  if (drop == Drop::residual) assembly.bound->rest.norm = assembly.bound->rest.mean = assembly.bound->rest.centred = 0;
  if (drop == Drop::mean) assembly.bound->rest.mean = 0;
  if (drop == Drop::evaluation) used = {0, 0, 0};
  if (drop == Drop::model) {
    const float limit = assembly.model.scale_limit;
    assembly.model = {};
    assembly.model.finite = true;
    assembly.model.scale_limit = limit;
  }
  form.finite = certificate::make_form(*assembly.bound, *assembly.facts, assembly.model, used, features, input.mean,
                                       assembly.values, form.rows.data(), form.coef.data(), form.spec, target);
  if (drop == Drop::narrow_key) form.spec.allow_residual = 0;
  if (drop == Drop::narrow_rows && form.spec.narrow != nullptr) {
    // The rows as make_form handed them over: heads are read anew, and aggregates are still there.
    const certificate::NarrowAllowance allowance =
        certificate::narrow_form(*assembly.bound, *assembly.facts, assembly.values, form.coef.data(),
                                 cpu::portable_kernels()->loops, target, form.rows.data());
    form.spec.allow[cpu::kNorm] =
        certificate::round_up(static_cast<double>(form.spec.allow[cpu::kNorm]) - allowance.norm);
  }
  return form;
}

struct Interval {
  float lower, upper;
};

/// What evaluates a form: F32 operation by operation, or real numbers (400 bits hold every sum of a form exactly enough
/// to leave only the model's error between the bound and the bits).
using Real =
    boost::multiprecision::number<boost::multiprecision::cpp_bin_float<400, boost::multiprecision::digit_base_2>>;

/// kernels.hpp's formula for one key.
template <class Number>
Interval evaluate(const cpu::FormSpec& spec, const Case& c) {
  std::vector<float> features(cpu::kMaxFeatures);
  double square = 0, centred = 0, power = 0;
  bool nan = false;
  for (int d = 0; d < c.dim; ++d) {
    const std::uint8_t code = c.key[static_cast<std::size_t>(d)];
    nan |= e4m3_is_nan(code);
    const auto value = static_cast<double>(code_value(code));
    if (d % 32 == 0) {
      features[static_cast<std::size_t>(cpu::kModel + 2 * (d / 32) + 1)] =
          certificate::round_up(std::sqrt(square) * (1 + 0x1p-50));
      power = 0;
    }
    square += value * value;
    const double off = value - (c.mean.empty() ? 0.0 : static_cast<double>(c.mean[static_cast<std::size_t>(d)]));
    centred += off * off;
    if (value != 0) power = std::max(power, std::max(0x1p-6, std::ldexp(1.0, std::ilogb(value))));
    if (d % 32 == 31) features[static_cast<std::size_t>(cpu::kModel + 2 * (d / 32))] = static_cast<float>(power);
  }
  features[cpu::kNorm] = certificate::round_up(std::sqrt(square) * (1 + 0x1p-45));
  features[cpu::kCentred] = certificate::round_up(std::sqrt(centred) * (1 + 0x1p-45));
  const auto dot = [&](const float* row) {
    Number sum = 0;
    for (int d = 0; d < c.dim; ++d) sum += Number(row[d]) * Number(code_value(c.key[static_cast<std::size_t>(d)]));
    return sum;
  };
  if (nan || !(c.scale >= 0 && c.scale <= spec.scale_limit)) return {-INFINITY, INFINITY};
  const bool narrow = spec.narrow != nullptr;
  const NarrowKey key = narrow ? narrow_key(c.key.data(), c.dim) : NarrowKey{};
  const auto integer_dot = [&](int row) {
    int sum = 0;
    for (int d = 0; d < c.dim; ++d) sum += spec.narrow[row * c.dim + d] * key.integers[static_cast<std::size_t>(d)];
    return Number(static_cast<float>(sum));
  };
  const auto relu_term = [&](int j) {
    const Number x = narrow ? integer_dot(j) : dot(spec.rows + j * c.dim);
    return x > 0 ? Number(narrow ? spec.narrow_factor[j] : spec.coef[j]) * x : Number(0);
  };
  const auto aggregate = [&](int a) {
    const int row = spec.relu_rows + a, high = row + a;
    if (!narrow) return dot(spec.rows + row * c.dim);
    return Number(Number(spec.narrow_factor[row]) * Number(Number(128) * integer_dot(high) + integer_dot(high + 1)));
  };
  Number value = 0;
  for (int j = 0; j < spec.relu_rows; ++j) value += relu_term(j);
  if (spec.aggregate_rows > 0) {
    Number best = aggregate(0);
    for (int a = 1; a < spec.aggregate_rows; ++a) {
      const Number other = aggregate(a);
      if (other > best) best = other;
    }
    if (spec.aggregate_floor == 0 && best < 0) best = 0;
    value -= best;
  }
  Number allow = Number(spec.constant);
  if (narrow) {
    value *= Number(key.step);
    allow += Number(spec.allow_residual) * Number(certificate::round_up(key.residual * (1 + 0x1p-45)));
  }
  if (spec.has_alternative) {
    const Number by_norm = Number(spec.alt_norm) * Number(features[cpu::kNorm]);
    const Number by_centre = Number(spec.alt_mean) + Number(spec.alt_centred) * Number(features[cpu::kCentred]);
    allow += by_centre < by_norm ? by_centre : by_norm;
  }
  for (int f = 0; f < cpu::feature_count(c.model, c.dim); ++f) {
    allow += Number(spec.allow[f]) * Number(features[static_cast<std::size_t>(f)]);
  }
  const auto high = static_cast<float>(Number(c.scale) * (value + allow));
  const auto low = static_cast<float>(Number(c.scale) * (value - allow));
  Interval interval{low - (std::fabs(low) * 0x1p-21F + 0x1p-145F), high + (std::fabs(high) * 0x1p-21F + 0x1p-145F)};
  if (!std::isfinite(interval.upper)) interval.upper = INFINITY;
  if (!std::isfinite(interval.lower)) interval.lower = -INFINITY;
  return interval;
}
inline Interval evaluate_scalar(const cpu::FormSpec& spec, const Case& c) { return evaluate<float>(spec, c); }

/// Holds where the key is not selectable, or its bits lie inside the interval (the lower side only where it is one).
inline bool holds(const Case& c, const Interval& interval, float bits) {
  if (std::isnan(bits)) return true;
  return interval.upper >= bits && (!c.dense || interval.lower <= bits);
}

inline std::string hex(const void* data, std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<const std::uint8_t*>(data)[i];
    out += kDigits[byte >> 4U];
    out += kDigits[byte & 15U];
  }
  return out;
}
inline void unhex(const std::string& text, void* data) {
  for (std::size_t i = 0; i < text.size() / 2; ++i) {
    static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
}

inline unsigned ablation_bits(const Ablation& a) {
  return (a.projection ? 1U : 0U) | (a.joint_residual ? 2U : 0U) | (a.centred ? 4U : 0U) | (a.aggregate ? 8U : 0U) |
         (a.second_aggregate ? 16U : 0U) | (a.absolute_form ? 32U : 0U) | (a.half_linear ? 64U : 0U);
}
inline Ablation ablation_of(unsigned bits) {
  Ablation a;
  a.projection = (bits & 1U) != 0;
  a.joint_residual = (bits & 2U) != 0;
  a.centred = (bits & 4U) != 0;
  a.aggregate = (bits & 8U) != 0;
  a.second_aggregate = (bits & 16U) != 0;
  a.absolute_form = (bits & 32U) != 0;
  a.half_linear = (bits & 64U) != 0;
  return a;
}

inline nlohmann::json to_json(const Case& c) {
  return {{"model", name(c.model)},
          {"dense", c.dense},
          {"narrow", c.narrow},
          {"heads", c.heads},
          {"dim", c.dim},
          {"retained", c.retained},
          {"ablation", ablation_bits(c.ablation)},
          {"sides", c.sides},
          {"q", hex(c.q.data(), c.q.size())},
          {"key", hex(c.key.data(), c.key.size())},
          {"weights", hex(c.weights.data(), c.weights.size() * 4)},
          {"mean", hex(c.mean.data(), c.mean.size() * 4)},
          {"scale", hex(&c.scale, 4)}};
}
inline Case from_json(const nlohmann::json& json) {
  Case c;
  c.model = parse_score_model(json.at("model").get<std::string>());
  c.dense = json.at("dense");
  c.narrow = json.value("narrow", false);
  c.heads = json.at("heads");
  c.dim = json.at("dim");
  c.retained = json.at("retained");
  c.ablation = ablation_of(json.at("ablation"));
  c.sides = json.at("sides");
  const auto q = json.at("q").get<std::string>(), key = json.at("key").get<std::string>();
  const auto weights = json.at("weights").get<std::string>(), mean = json.at("mean").get<std::string>();
  c.q.resize(q.size() / 2);
  c.key.resize(key.size() / 2);
  c.weights.resize(weights.size() / 8);
  c.mean.resize(mean.size() / 8);
  unhex(q, c.q.data());
  unhex(key, c.key.data());
  unhex(weights, c.weights.data());
  unhex(mean, c.mean.data());
  unhex(json.at("scale").get<std::string>(), &c.scale);
  return c;
}

using Random = std::mt19937_64;
inline int below(Random& random, int count) { return static_cast<int>(random() % static_cast<std::uint64_t>(count)); }
inline double unit(Random& random) { return static_cast<double>(random() >> 11U) * 0x1p-53; }
inline double normal(Random& random) {
  return std::sqrt(-2 * std::log(unit(random) + 0x1p-60)) * std::cos(6.283185307179586 * unit(random));
}
inline std::uint8_t any_finite_code(Random& random) {
  const auto code = static_cast<std::uint8_t>(random() & 0xffU);
  return e4m3_is_nan(code) ? static_cast<std::uint8_t>(code & 0x80U) : code;
}

/// A vector of codes from one of spec 4.3's families.
inline Codes some_codes(Random& random, int dim) {
  Codes codes(static_cast<std::size_t>(dim));
  const int family = below(random, 10);
  const double size = std::ldexp(1.0, below(random, 9));
  const auto hot = static_cast<std::size_t>(below(random, dim));
  for (std::size_t d = 0; d < codes.size(); ++d) {
    switch (family) {
      case 0:
        codes[d] = any_finite_code(random);
        break;
      case 1:
        codes[d] = static_cast<std::uint8_t>(0x7eU | (random() & 0x80U));
        break;  // +-448
      case 2:
        codes[d] = static_cast<std::uint8_t>((random() % 8U) | (random() & 0x80U));
        break;  // subnormal
      case 3:
        codes[d] = d == hot ? std::uint8_t{0x7e} : std::uint8_t{0};
        break;  // one hot
      case 4:
        codes[d] = nearest_code(d % 2 == 0 ? size : -size);
        break;  // cancels
      case 5:
        codes[d] = 0;
        break;
      case 6:
        codes[d] = below(random, 4) == 0 ? nearest_code(normal(random) * 100) : std::uint8_t{0x01};
        break;  // wide
      case 7:
        codes[d] = d == hot ? std::uint8_t{0x7e} : nearest_code(1.75);
        break;  // one big, all losing
      default:
        codes[d] = nearest_code(normal(random) * size);
    }
  }
  return codes;
}

inline float some_weight(Random& random) {
  switch (below(random, 12)) {
    case 0:
      return 0.0F;
    case 1:
      return -0.0F;
    case 2:
      return std::ldexp(1.0F, 60) * (random() % 2 == 0 ? 1.0F : -1.0F);
    case 3:
      return std::bit_cast<float>(
          static_cast<std::uint32_t>((random() % 0x800000U) | (random() & 0x80000000U)));  // subnormal
    case 4:
      return random() % 2 == 0 ? 1.0F : -1.0F;
    default:
      return static_cast<float>(normal(random) * 0.02);
  }
}

inline float some_scale(Random& random) {
  static constexpr float kHard[] = {0.0F, -0.0F, -1.0F, 0x1p-149F, 0x1p-126F, 0x1p127F, 3.4028234e38F};
  if (below(random, 8) == 0) return kHard[below(random, 7)];
  if (below(random, 40) == 0) return below(random, 2) == 0 ? INFINITY : NAN;
  return static_cast<float>(std::ldexp(0.5 + unit(random), below(random, 12) - 8));
}

inline void copy_head(Case& c, int from, int to, double factor) {
  for (int d = 0; d < c.dim; ++d) {
    c.q[static_cast<std::size_t>(to * c.dim + d)] =
        nearest_code(factor * static_cast<double>(code_value(c.q[static_cast<std::size_t>(from * c.dim + d)])));
  }
}

/// A row and a key that are hard in one of spec 4.4's ways.
inline Case some_case(Random& random, ScoreModel model) {
  static constexpr int kHeads[] = {1, 2, 4, 8, 16, 24, 32, 64, 128};
  static constexpr int kDims[] = {32, 64, 96, 128, 192, 256};
  Case c;
  c.model = model;
  c.heads = kHeads[below(random, below(random, 8) == 0 ? 9 : 6)];
  c.dim = kDims[below(random, below(random, 4) == 0 ? 6 : 2)];
  c.dense = below(random, 3) == 0;
  c.retained = 1 + below(random, c.heads);
  c.ablation = ablation_of(static_cast<unsigned>(below(random, 3) == 0 ? random() % 128U : 95U));
  c.sides = below(random, 2) == 0 ? ~std::uint64_t{0} : random();
  for (int h = 0; h < c.heads; ++h) {
    const Codes head = some_codes(random, c.dim);
    c.q.insert(c.q.end(), head.begin(), head.end());
    c.weights.push_back(some_weight(random));
  }
  const int shape = below(random, 8);
  if (shape == 0) {
    for (float& w : c.weights) w = std::fabs(w);  // every positive beyond a small budget
  } else if (shape == 1) {
    for (int h = 1; h < c.heads; ++h) copy_head(c, 0, h, h % 3 == 0 ? -1 : (h % 3 == 1 ? 1 : 0.5));  // collinear
  } else if (shape == 2) {
    for (int h = 0; h + 1 < c.heads; h += 2) {  // negatives that cancel exactly inside an aggregate
      copy_head(c, h, h + 1, -1);
      c.weights[static_cast<std::size_t>(h)] = c.weights[static_cast<std::size_t>(h + 1)] = -0.125F;
    }
  } else if (shape == 3) {
    for (int h = 0; h < c.heads; ++h)
      c.weights[static_cast<std::size_t>(h)] = h % 3 == 0 ? 0x1p60F : (h % 3 == 1 ? -1.0F : -0x1p60F);
    for (int h = 1; h < c.heads; ++h) copy_head(c, 0, h, 1);
  } else if (shape == 4 && below(random, 4) == 0) {
    for (float& w : c.weights) w = (random() % 2 == 0 ? 3e38F : -3e38F);
  }
  c.key = some_codes(random, c.dim);
  const int aim = below(random, 6);
  if (aim < 4) {  // along or against heads, sums of heads, or what one head leaves of another
    const int a = below(random, c.heads), b = below(random, c.heads);
    const double sign = aim % 2 == 0 ? 1 : -1, beta = unit(random);
    double largest = 1e-9;
    std::vector<double> target(static_cast<std::size_t>(c.dim));
    for (int d = 0; d < c.dim; ++d) {
      double& x = target[static_cast<std::size_t>(d)];
      if (aim < 2) {
        x = static_cast<double>(code_value(c.q[static_cast<std::size_t>(a * c.dim + d)])) -
            beta * static_cast<double>(code_value(c.q[static_cast<std::size_t>(b * c.dim + d)]));
      } else {
        for (int h = 0; h < c.heads; ++h) {
          x += static_cast<double>(code_value(c.q[static_cast<std::size_t>(h * c.dim + d)])) *
               (c.weights[static_cast<std::size_t>(h)] < 0 ? -1 : 1);
        }
      }
      largest = std::max(largest, std::fabs(x));
    }
    for (int d = 0; d < c.dim; ++d) {
      c.key[static_cast<std::size_t>(d)] = nearest_code(sign * target[static_cast<std::size_t>(d)] / largest * 448);
    }
  }
  const int mean = below(random, 5);
  if (mean > 0) {
    c.mean.resize(static_cast<std::size_t>(c.dim));
    for (std::size_t d = 0; d < c.mean.size(); ++d) {
      if (mean == 1) c.mean[d] = code_value(c.key[d]);  // the key is the mean
      if (mean == 2) c.mean[d] = 0;
      if (mean == 3) c.mean[d] = code_value(c.key[d]) * 0.5F + static_cast<float>(normal(random));
      if (mean == 4) c.mean[d] = static_cast<float>(normal(random) * 50);
    }
  }
  c.scale = some_scale(random);
  if (below(random, 40) == 0) c.key[static_cast<std::size_t>(below(random, c.dim))] = 0x7f;
  if (below(random, 40) == 0) c.q[static_cast<std::size_t>(below(random, c.heads * c.dim))] = 0xff;
  if (below(random, 60) == 0) c.weights[static_cast<std::size_t>(below(random, c.heads))] = INFINITY;
  return c;
}

}  // namespace dosa::test
