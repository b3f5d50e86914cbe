// The kernel table for any processor: vectors of four floats in the compiler's own notation (SSE2, NEON, VSX or scalar
// code, whatever the target has), a multiplication and an addition instead of a fused one.
#include <cstring>

#include "cpu/kernels.hpp"
#include "cpu/key_sources.hpp"
#include "cpu/model_scores.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/row_loops.hpp"

namespace dosa::cpu {
namespace {

struct Lanes128 : OneDimensionAStep {
  using Vector = float __attribute__((vector_size(16)));
  using Mask = std::int32_t __attribute__((vector_size(16)));
  static constexpr int width = 4;
  // 4 rows x 2 registers: 8 sums, 2 registers of keys, a broadcast and a product fit 16 registers.
  static constexpr int vectors = 2, rows = 4, panel_keys = 32;

  static Vector zero() { return broadcast(0.0F); }
  static Vector load(const float* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Vector x) { std::memcpy(p, &x, sizeof x); }
  static Vector broadcast(float x) { return Vector{x, x, x, x}; }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector subtract(Vector a, Vector b) { return a - b; }
  static Vector multiply(Vector a, Vector b) { return a * b; }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
  static Vector accumulate(Vector row, Vector key, Vector sum) { return multiply_add(row, key, sum); }
  static Vector minimum(Vector a, Vector b) { return select(a < b, a, b); }
  static Vector maximum_or_second(Vector a, Vector b) { return select(a > b, a, b); }
  static Vector relu(Vector x) { return select(x <= zero(), zero(), x); }  // NaN in, NaN out
  static Vector magnitude(Vector x) { return from_bits(bits(x) & 0x7fffffff); }
  /// |value| <= limit ? yes : no; NaN is within no limit.
  static Vector where_within(Vector value, Vector limit, Vector yes, Vector no) {
    return select(magnitude(value) <= limit, yes, no);
  }

 private:
  static Mask bits(Vector x) {
    Mask m;
    std::memcpy(&m, &x, sizeof m);
    return m;
  }
  static Vector from_bits(Mask m) {
    Vector x;
    std::memcpy(&x, &m, sizeof x);
    return x;
  }
  static Vector select(Mask mask, Vector yes, Vector no) { return from_bits((bits(yes) & mask) | (bits(no) & ~mask)); }
};

using Table = PanelKernels<Lanes128>;
constexpr int kKeys = Table::keys;

/// Value * 2^-8 of every code (0 for the NaN codes, which the scale marks).
struct Decoded {
  float value[256];
  constexpr Decoded() : value{} {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      if (exponent == 15 && mantissa == 7) continue;
      float x = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * 0x1p-17F;
      for (int e = 1; e < exponent; ++e) x *= 2;
      value[code] = code >= 128 ? -x : x;
    }
  }
};
constexpr Decoded kDecoded;

/// An upper bound in F32 of a nonnegative binary64 (finite or not).
inline float upward(double x) {
  const auto near = static_cast<float>(x);
  if (static_cast<double>(near) >= x || near != near) return near;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &near, sizeof bits);
  ++bits;  // the next float: x is not negative
  float next = 0;
  std::memcpy(&next, &bits, sizeof next);
  return next;
}

/// Sums of squares of codes are exact in binary64 (multiples of 2^-34 below 2^12 after scaling). The root is rounded
/// once to nearest by 2^-53; of a sum of squares of differences every term and sum adds 2^-52: 2^-40 covers all.
inline float root_upward(double sum, bool exact) {
  const double root = __builtin_sqrt(sum) * 256.0;
  return upward(root * (exact ? 1 + 0x1p-51 : 1 + 0x1p-40) + (exact ? 0.0 : 0x1p-64));
}

void pack(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, const PackSpec& spec,
          Panel& panel) {
  Lane lane[kKeys];
  find_lanes<kKeys>(keys, index, first, count, lane);
  panel.count = count;
  const bool with_model = panel.feature_count > kModel;
  auto* data = reinterpret_cast<float*>(panel.data);
  for (int k = 0; k < kKeys; ++k) {
    const std::uint8_t* codes = lane[k].codes;
    double squares = 0, centred = 0;
    bool poisoned = false;
    for (int chunk = 0; chunk < panel.head_dim; chunk += 32) {
      const double before = squares;
      unsigned most = 0;
      for (int d = chunk; d < chunk + 32; ++d) {
        const float x = kDecoded.value[codes[d]];
        const unsigned magnitude = codes[d] & 0x7fU;
        most = magnitude > most ? magnitude : most;
        squares += static_cast<double>(x) * static_cast<double>(x);
        data[d * kKeys + k] = x;
      }
      if (spec.mean != nullptr) {
        for (int d = chunk; d < chunk + 32; ++d) {
          const double difference =
              static_cast<double>(kDecoded.value[codes[d]]) - static_cast<double>(spec.mean[d]) * kCodeFactor;
          centred += difference * difference;
        }
      }
      poisoned |= most == 0x7f;
      if (with_model) {
        float* at = panel.features + (kModel + chunk / 16) * kKeys + k;
        const unsigned exponent = most >> 3 > 1 ? most >> 3 : 1;
        at[0] = most == 0 ? 0.0F : static_cast<float>(1U << exponent) * 0x1p-7F;
        at[kKeys] = root_upward(before, true);
      }
    }
    const float norm = root_upward(squares, true);
    panel.features[kNorm * kKeys + k] = norm;
    panel.features[kCentred * kKeys + k] = spec.mean == nullptr || k >= count ? norm : root_upward(centred, false);
    panel.scale[k] = poisoned ? __builtin_nanf("") : lane[k].scale;
  }
}

/// D products rounded once, D additions: each partial sum is at most (1+u)^(D+1) sum |row_d k_d|, u = 2^-24 (2^-23
/// here, for the sake of processors whose additions round otherwise): (D + 1) u (1+u)^(D+1).
Arithmetic arithmetic(int head_dim) { return {(head_dim + 1) * 0x1p-23 * (1 + 0x1p-14), 0.0, 0x1p-23}; }

std::int64_t count_not_below(const float* values, std::int64_t count, float threshold) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += values[i] < threshold ? 0 : 1;
  return found;
}

std::int64_t positions_between(const float* lower, const float* upper, std::int64_t count, float low, float high,
                               std::int32_t* out) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    out[found] = static_cast<std::int32_t>(i);
    found += upper[i] < low || lower[i] >= high ? 0 : 1;
  }
  return found;
}

std::int64_t values_between(const float* values, std::int64_t count, float low, float high, float* out) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i];
    out[found] = value;
    found += !(value < low) && value < high ? 1 : 0;
  }
  return found;
}

std::int64_t keep_not_below(const Candidates& from, std::int64_t count, float floor, std::int32_t base,
                            const Candidates& to) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (from.upper[i] < floor) continue;
    to.key[found] = from.key == nullptr ? base + static_cast<std::int32_t>(i) : from.key[i];
    if (from.lower != nullptr) to.lower[found] = from.lower[i];
    to.upper[found++] = from.upper[i];
  }
  return found;
}

bool read_head(const std::uint8_t* codes, int head_dim, float* values, double* absolute, double* square) {
  bool nan = false;
  double sum = 0, squares = 0;
  for (int d = 0; d < head_dim; ++d) {
    values[d] = kDecoded.value[codes[d]] * kRowFactor;
    nan |= (codes[d] & 0x7fU) == 0x7fU;
  }
  for (int d = 0; d < head_dim; ++d) {
    const auto value = static_cast<double>(values[d]);
    sum += value < 0 ? -value : value;
    squares += value * value;
  }
  *absolute = sum;
  *square = squares;
  return nan;
}

double exact_dot(const float* a, const float* b, int dim) {
  double part[4] = {};
  for (int d = 0; d < dim; d += 4) {
    for (int l = 0; l < 4; ++l) part[l] += static_cast<double>(a[d + l]) * static_cast<double>(b[d + l]);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

using Loops = SampleLoops<Lanes128>;

constexpr Kernels kKernels{
    Isa::portable,
    Table::keys,
    arithmetic,
    Table::panel_bytes,
    Table::form_bytes,
    Table::make_panel,
    pack,
    Table::make_form,
    Table::upper,
    Table::bounds,
    Table::screen<keep_not_below>,
    Table::dots,
    portable::model_bytes,
    portable::model_row,
    portable::model_scores,
    count_not_below,
    positions_between,
    values_between,
    keep_not_below,
    {read_head, exact_dot, Loops::add_relu, Loops::add, Loops::weighted_sum, Loops::survivors, Loops::joint_square}};

}  // namespace

const Kernels* portable_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
