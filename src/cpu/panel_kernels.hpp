// The part of a kernel table that is the same for every instruction set that multiplies in F32: forms, the small matrix
// product, the epilogue. `Lanes` names the registers. Everything is in an unnamed namespace on purpose: each
// instruction set's file compiles its own copy with its own flags, and no copy may be merged with another by the
// linker.
//
// Codes are stored as value * 2^-8 and rows as value * 2^8: an E4M3 code then becomes an F32 through the F16 converter
// without a multiplication, and no dot product changes (a power of two commutes with every rounding; what falls below
// the F32 range is paid for in make_form).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see the top

inline constexpr float kRowFactor = 256.0F;  // exact; its inverse is the factor of the codes
inline constexpr float kCodeFactor = 1.0F / 256.0F;
inline constexpr float kSlackRelative = 0x1p-21F;  // up() and down() of kernels.hpp
inline constexpr float kSlackAbsolute = 0x1p-145F;

inline constexpr int kMostSteps = 256;  // a step takes one dimension or more

/// Rows are computed in groups of nearly equal size: 9 rows as 5 + 4 keep enough independent sums in flight to hide the
/// latency of the multiplier, 8 + 1 do not.
struct Groups {
  int count = 0, base = 0, larger = 0;  // the first `larger` groups have base + 1 rows
  static Groups of(int rows, int most) {
    Groups groups;
    groups.count = (rows + most - 1) / most;
    if (groups.count > 0) {
      groups.base = rows / groups.count;
      groups.larger = rows % groups.count;
    }
    return groups;
  }
  [[nodiscard]] int size(int group) const { return base + (group < larger ? 1 : 0); }
};

inline std::size_t rounded_up(std::size_t bytes) { return (bytes + 63) & ~std::size_t{63}; }

inline int features_of(ScoreModel model, int head_dim) {
  return model == ScoreModel::f64 ? static_cast<int>(kModel) : kModel + 2 * (head_dim / 32);
}

template <int keys>
inline std::size_t panel_bytes_of(std::size_t code_bytes, int head_dim, ScoreModel model) {
  return rounded_up(code_bytes) +
         sizeof(float) * static_cast<std::size_t>(keys) * static_cast<std::size_t>(1 + features_of(model, head_dim)) +
         64;
}

template <int keys>
inline Panel make_panel_of(std::byte* memory, std::size_t code_bytes, int head_dim, ScoreModel model) {
  Panel panel;
  panel.data = memory;
  panel.scale = reinterpret_cast<float*>(memory + rounded_up(code_bytes));
  panel.features = panel.scale + keys;
  panel.head_dim = head_dim;
  panel.feature_count = features_of(model, head_dim);
  panel.count = 0;
  return panel;
}

/// Copies what a Form shares with its FormSpec. A sum of products of arbitrary F32 rows may lose a little to numbers
/// below the F32 range: the F32 units 2^-150 a term; the bf16 units flush to zero at most 2 D results below
/// 2^-126 and D inputs below 2^-126 times a stored code of at most 1.75, together less than 2^-115. The constant is
/// raised by 2^-100 and then by 2^-22 of itself, so that its own two roundings cannot undo that. Relu rows never come
/// near: their products are multiples of 2^-18.
inline Form form_header(const FormSpec& spec, ScoreModel model, std::byte* memory) {
  Form form;
  form.data = memory;
  form.head_dim = spec.head_dim;
  form.relu_rows = spec.relu_rows;
  form.aggregate_rows = spec.aggregate_rows;
  form.feature_count = features_of(model, spec.head_dim);
  form.constant = spec.constant;
  if (spec.aggregate_rows > 0) {
    const float raised = spec.constant + 0x1p-100F;
    form.constant = raised + (raised < 0 ? -raised : raised) * 0x1p-22F;
  }
  for (int f = 0; f < kMaxFeatures; ++f) form.allow[f] = f < form.feature_count ? spec.allow[f] : 0.0F;
  form.scale_limit = spec.scale_limit;
  form.aggregate_floor = spec.aggregate_floor;
  form.has_alternative = spec.has_alternative;
  form.alt_norm = spec.alt_norm;
  form.alt_mean = spec.alt_mean;
  form.alt_centred = spec.alt_centred;
  form.narrow = spec.narrow != nullptr;
  form.allow_residual = spec.allow_residual;
  return form;
}

/// A(k) of `Lanes::vectors` registers of keys; NaN where an operand of the minimum is not finite.
template <class Lanes>
inline void allowances(const Form& form, const float* features, int stride, typename Lanes::Vector* sum) {
  using V = typename Lanes::Vector;
  for (int v = 0; v < Lanes::vectors; ++v) {
    const float* at = features + v * Lanes::width;
    V a = Lanes::broadcast(form.constant);
    if (form.has_alternative) {
      const V plain = Lanes::multiply(Lanes::broadcast(form.alt_norm), Lanes::load(at + kNorm * stride));
      const V centred = Lanes::multiply_add(Lanes::broadcast(form.alt_centred), Lanes::load(at + kCentred * stride),
                                            Lanes::broadcast(form.alt_mean));
      const V poison = Lanes::add(Lanes::subtract(plain, plain), Lanes::subtract(centred, centred));
      a = Lanes::add(a, Lanes::add(Lanes::minimum(plain, centred), poison));
    }
    for (int f = 0; f < form.feature_count; ++f) {
      a = Lanes::multiply_add(Lanes::broadcast(form.allow[f]), Lanes::load(at + f * stride), a);
    }
    sum[v] = a;
  }
}

/// The lanes of a panel that a row sees.
struct SeenLanes {
  int first, last;

  SeenLanes(const ScreenRow& row, std::int32_t base, int count)
      : first(row.first > base ? row.first - base : 0), last(row.last - base < count ? row.last - base : count) {}
  [[nodiscard]] bool none() const { return first >= last; }
};

/// Where the next key that a row keeps goes.
inline Candidates next_place(const ScreenRow& row) {
  return {row.to.key + row.count, row.to.lower + row.count, row.to.upper + row.count};
}

/// scale * t and what up() adds or down() takes away.
template <class Lanes>
struct Scaled {
  using V = typename Lanes::Vector;
  V product, slack, scale, limit;

  Scaled(const Form& form, V key_scale, V t)
      : product(Lanes::multiply(key_scale, t)),
        slack(Lanes::add(Lanes::multiply(Lanes::magnitude(product), Lanes::broadcast(kSlackRelative)),
                         Lanes::broadcast(kSlackAbsolute))),
        scale(key_scale),
        limit(Lanes::broadcast(form.scale_limit)) {}

  /// A scale that disqualifies the key for every form is stored as NaN (find_lanes, pack) and is within no limit; t is
  /// infinite or NaN where the form's arithmetic overflowed, and then so is the product.
  [[nodiscard]] V or_unbounded(V bound, float unbounded) const {
    const V no = Lanes::broadcast(unbounded);
    return Lanes::where_within(scale, limit, Lanes::where_within(product, Lanes::broadcast(__FLT_MAX__), bound, no),
                               no);
  }
  /// Infinite or NaN where something overflowed or the key's scale is NaN.
  [[nodiscard]] V sum() const { return Lanes::add(product, slack); }
  [[nodiscard]] V difference() const { return Lanes::subtract(product, slack); }
  [[nodiscard]] V up() const { return or_unbounded(sum(), __builtin_inff()); }
  [[nodiscard]] V down() const { return or_unbounded(difference(), -__builtin_inff()); }
};

/// Part of a Lanes whose products take one dimension a step, in F32. (bf16 pairs take two: kernels_avx512bf16.cpp.)
struct OneDimensionAStep {
  static int steps(int head_dim) { return head_dim; }
  static void row_elements(const float* row, int head_dim, float* out) {
    for (int d = 0; d < head_dim; ++d) out[d] = row[d] * kRowFactor;
  }
};

/// The F32 kernels. Panel: codes [D][panel_keys] F32, then scales, then features. Form: coefficients, then for each
/// group of R rows [D][R] F32.
template <class Lanes>
struct PanelKernels {
  using V = typename Lanes::Vector;
  static constexpr int keys = Lanes::panel_keys;
  static constexpr int tile = Lanes::vectors * Lanes::width;
  static_assert(keys % tile == 0 && keys % 16 == 0 && keys <= 64);

  static std::size_t code_bytes(int head_dim) {
    return sizeof(float) * keys * static_cast<std::size_t>(Lanes::steps(head_dim));
  }
  static std::size_t panel_bytes(int head_dim, ScoreModel model) {
    return panel_bytes_of<keys>(code_bytes(head_dim), head_dim, model);
  }
  static Panel make_panel(std::byte* memory, int head_dim, ScoreModel model) {
    return make_panel_of<keys>(memory, code_bytes(head_dim), head_dim, model);
  }

  static std::size_t coefficient_bytes(int rows) { return rounded_up(sizeof(float) * static_cast<std::size_t>(rows)); }
  static std::size_t form_bytes(int rows, int head_dim) {
    return coefficient_bytes(rows) + rounded_up(sizeof(float) * static_cast<std::size_t>(rows) *
                                                static_cast<std::size_t>(Lanes::steps(head_dim)));
  }

  static Form make_form(const FormSpec& spec, ScoreModel model, std::byte* memory) {
    const Form form = form_header(spec, model, memory);
    const int rows = spec.relu_rows + spec.aggregate_rows;
    auto* coefficients = reinterpret_cast<float*>(memory);
    for (int j = 0; j < spec.relu_rows; ++j) coefficients[j] = spec.coef[j];
    auto* out = reinterpret_cast<float*>(memory + coefficient_bytes(rows));
    const Groups groups = Groups::of(rows, Lanes::rows);
    const float* row = spec.rows;
    const int steps = Lanes::steps(spec.head_dim);
    float elements[Lanes::rows * kMostSteps];
    for (int g = 0; g < groups.count; ++g) {
      const int size = groups.size(g);
      for (int r = 0; r < size; ++r) Lanes::row_elements(row + r * spec.head_dim, spec.head_dim, elements + r * steps);
      for (int s = 0; s < steps; ++s) {
        for (int r = 0; r < size; ++r) out[s * size + r] = elements[r * steps + s];
      }
      out += size * steps;
      row += size * spec.head_dim;
    }
    return form;
  }

  /// What the groups of one tile add up to.
  struct State {
    V sum[Lanes::vectors];
    V aggregate[Lanes::vectors];
  };

  template <int R>
  static inline void products(const float* rows, const float* codes, int head_dim, V (&acc)[R][Lanes::vectors]) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < Lanes::vectors; ++v) acc[r][v] = Lanes::zero();
    }
    const int steps = Lanes::steps(head_dim);
#pragma GCC unroll 4
    for (int s = 0; s < steps; ++s) {
      V key[Lanes::vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Lanes::vectors; ++v) key[v] = Lanes::load(codes + s * keys + v * Lanes::width);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V row = Lanes::broadcast(rows[s * R + r]);
#pragma GCC unroll 8
        for (int v = 0; v < Lanes::vectors; ++v) acc[r][v] = Lanes::accumulate(row, key[v], acc[r][v]);
      }
    }
  }

  template <int R>
  static void bound_group(const float* rows, const float* codes, int head_dim, const float* coefficients, int relu_rows,
                          State& state) {
    V acc[R][Lanes::vectors];
    products<R>(rows, codes, head_dim, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (r < relu_rows) {
        const V coefficient = Lanes::broadcast(coefficients[r]);
#pragma GCC unroll 8
        for (int v = 0; v < Lanes::vectors; ++v) {
          state.sum[v] = Lanes::multiply_add(coefficient, Lanes::relu(acc[r][v]), state.sum[v]);
        }
      } else {
        // A dot product that overflowed to NaN or -inf leaves the aggregate as it is: a smaller aggregate is a larger
        // bound. (One that overflowed to +inf makes t infinite.)
#pragma GCC unroll 8
        for (int v = 0; v < Lanes::vectors; ++v)
          state.aggregate[v] = Lanes::maximum_or_second(acc[r][v], state.aggregate[v]);
      }
    }
  }

  template <int R>
  static void store_group(const float* rows, const float* codes, int head_dim, int wanted, float* dots) {
    V acc[R][Lanes::vectors];
    products<R>(rows, codes, head_dim, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (r < wanted) {
#pragma GCC unroll 8
        for (int v = 0; v < Lanes::vectors; ++v) Lanes::store(dots + r * keys + v * Lanes::width, acc[r][v]);
      }
    }
  }

  static inline void bound_tile(const Form& form, const float* codes, State& state) {
    const int rows = form.relu_rows + form.aggregate_rows;
    const auto* coefficients = reinterpret_cast<const float*>(form.data);
    const auto* data = reinterpret_cast<const float*>(form.data + coefficient_bytes(rows));
    const Groups groups = Groups::of(rows, Lanes::rows);
    for (int v = 0; v < Lanes::vectors; ++v) {
      state.sum[v] = Lanes::zero();
      state.aggregate[v] = Lanes::broadcast(form.aggregate_floor);
    }
    int row = 0;
    for (int g = 0; g < groups.count; ++g) {
      const int size = groups.size(g);
      const int relu = form.relu_rows - row;
      const float* c = coefficients + row;
      switch (size) {
        case 1:
          bound_group<1>(data, codes, form.head_dim, c, relu, state);
          break;
        case 2:
          bound_group<2>(data, codes, form.head_dim, c, relu, state);
          break;
        case 3:
          bound_group<3>(data, codes, form.head_dim, c, relu, state);
          break;
        case 4:
          bound_group<4>(data, codes, form.head_dim, c, relu, state);
          break;
        default:
          if constexpr (Lanes::rows > 4) {
            switch (size) {
              case 5:
                bound_group<5>(data, codes, form.head_dim, c, relu, state);
                break;
              case 6:
                bound_group<6>(data, codes, form.head_dim, c, relu, state);
                break;
              case 7:
                bound_group<7>(data, codes, form.head_dim, c, relu, state);
                break;
              default:
                bound_group<8>(data, codes, form.head_dim, c, relu, state);
                break;
            }
          }
      }
      data += size * Lanes::steps(form.head_dim);
      row += size;
    }
  }

  static void upper(const Form& form, const Panel& panel, float* upper) {
    for (int first = 0; first < panel.count; first += tile) {
      State state;
      bound_tile(form, reinterpret_cast<const float*>(panel.data) + first, state);
      V allowance[Lanes::vectors];
      allowances<Lanes>(form, panel.features + first, keys, allowance);
      for (int v = 0; v < Lanes::vectors; ++v) {
        const V t = Lanes::add(Lanes::subtract(state.sum[v], state.aggregate[v]), allowance[v]);
        Lanes::store(upper + first + v * Lanes::width,
                     Scaled<Lanes>(form, Lanes::load(panel.scale + first + v * Lanes::width), t).up());
      }
    }
  }

  static void bounds(const Form& form, const Panel& panel, float* lower, float* upper) {
    for (int first = 0; first < panel.count; first += tile) {
      State state;
      bound_tile(form, reinterpret_cast<const float*>(panel.data) + first, state);
      V allowance[Lanes::vectors];
      allowances<Lanes>(form, panel.features + first, keys, allowance);
      for (int v = 0; v < Lanes::vectors; ++v) {
        const V scale = Lanes::load(panel.scale + first + v * Lanes::width);
        Lanes::store(upper + first + v * Lanes::width,
                     Scaled<Lanes>(form, scale, Lanes::add(state.sum[v], allowance[v])).up());
        Lanes::store(lower + first + v * Lanes::width,
                     Scaled<Lanes>(form, scale, Lanes::subtract(state.sum[v], allowance[v])).down());
      }
    }
  }

  template <decltype(Kernels::keep_not_below) keep>
  static void screen(ScreenRow* rows, int count, const Panel* panels, int panel_count, std::int32_t base) {
    alignas(64) float low[keys], high[keys];
    for (int p = 0; p < panel_count; ++p, base += keys) {
      for (ScreenRow* row = rows; row != rows + count; ++row) {
        const SeenLanes seen(*row, base, panels[p].count);
        if (seen.none()) continue;
        if (row->lower) {
          bounds(*row->form, panels[p], low, high);
        } else {
          upper(*row->form, panels[p], high);
        }
        row->count += keep({nullptr, row->lower ? low + seen.first : nullptr, high + seen.first},
                           seen.last - seen.first, row->floor, base + seen.first, next_place(*row));
      }
    }
  }

  static void dots(const Form& form, int wanted, const Panel& panel, float* dots) {
    const int rows = form.relu_rows + form.aggregate_rows;
    const Groups groups = Groups::of(rows, Lanes::rows);
    for (int first = 0; first < panel.count; first += tile) {
      const float* codes = reinterpret_cast<const float*>(panel.data) + first;
      const auto* data = reinterpret_cast<const float*>(form.data + coefficient_bytes(rows));
      int row = 0;
      for (int g = 0; g < groups.count && row < wanted; ++g) {
        const int size = groups.size(g);
        const int left = wanted - row;
        float* out = dots + row * keys + first;
        switch (size) {
          case 1:
            store_group<1>(data, codes, form.head_dim, left, out);
            break;
          case 2:
            store_group<2>(data, codes, form.head_dim, left, out);
            break;
          case 3:
            store_group<3>(data, codes, form.head_dim, left, out);
            break;
          case 4:
            store_group<4>(data, codes, form.head_dim, left, out);
            break;
          default:
            if constexpr (Lanes::rows > 4) {
              switch (size) {
                case 5:
                  store_group<5>(data, codes, form.head_dim, left, out);
                  break;
                case 6:
                  store_group<6>(data, codes, form.head_dim, left, out);
                  break;
                case 7:
                  store_group<7>(data, codes, form.head_dim, left, out);
                  break;
                default:
                  store_group<8>(data, codes, form.head_dim, left, out);
                  break;
              }
            }
        }
        data += size * Lanes::steps(form.head_dim);
        row += size;
      }
    }
  }
};

}  // namespace
}  // namespace dosa::cpu
