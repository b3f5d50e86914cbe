// The bf16 tile kernels over a small tile interface, so that the same code runs on the processor's tiles
// (kernels_amx.cpp) and on an emulation (kernels_emulated_amx.cpp). Unnamed namespace: see panel_kernels.hpp.
//
// Panel: 64 keys as [D/32][4 blocks of 16 keys][16 pairs of dimensions][16 keys][2] bf16: one tile of the second
// operand is 1 KiB in a row. A pair is (d, d + 16) of its chunk of 32: the order of dimensions is free as long as rows
// use the same. Form: coefficients, then for each block of R <= 16 rows [D/32][R][16 pairs][2] bf16. An aggregate row x
// is two stored rows, hi = bf16(x) and lo = bf16(x - hi), whose dot products are added in F32.
#pragma once

#include "cpu/intrinsics.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

struct Lanes512x4 : Lanes512 {
  static constexpr int vectors = 4, panel_keys = 64;
};

/// bf16 in the upper halves of 16 F32 bit patterns, round to nearest even; infinities stay, NaN becomes a quiet NaN.
inline __m512i bf16_of(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_and_si512(rounded, _mm512_set1_epi32(-65536)), _mm512_set1_epi32(0x7fc00000));
}

/// Dimensions d (low halves) and d + 16 (high halves) side by side.
inline __m512i pairs_of(__m512i low, __m512i high) { return _mm512_or_si512(_mm512_srli_epi32(low, 16), high); }

struct Bf16Sink {
  static constexpr int panel_keys = 64;
  static void store(std::byte* data, int group, int d, __m512 low, __m512 high) {
    // E4M3 values have 4 significant bits: the upper half of the F32 is the bf16, exactly.
    const __m512i upper_half = _mm512_set1_epi32(-65536);
    const __m512i pair = pairs_of(_mm512_and_si512(_mm512_castps_si512(low), upper_half),
                                  _mm512_and_si512(_mm512_castps_si512(high), upper_half));
    _mm512_store_si512(data + d / 32 * 4096 + group * 1024 + d % 32 * 64, pair);
  }
};

/// TDPBF16PS multiplies exactly (8 by 8 significant bits) and adds in an order and with roundings that Intel leaves
/// open: any tree of at most D additions, each off by at most 2^-23 of its result, is within D 2^-23 (1 + 2^-14) of the
/// sum of magnitudes. An aggregate's two dot products cost one addition more, and |hi| + |lo| <= (1 + 2^-7) |hi + lo|:
/// bf16 keeps 8 bits, so |x - hi| <= 2^-9 |x| and |x - hi - lo| <= 2^-18 |x| (x - hi is exact in F32). What the unit
/// flushes to zero is paid for in form_header.
inline Arithmetic bf16_arithmetic(int head_dim) { return {(head_dim + 1) * 0x1p-23 * (1 + 0x1p-6), 0x1p-17, 0x1p-24}; }

template <class Tiles>
struct AmxKernels {
  using Lanes = Lanes512x4;
  static constexpr int keys = Lanes::panel_keys;
  static constexpr int most_rows = 16;

  static std::size_t code_bytes(int head_dim) { return 2 * keys * static_cast<std::size_t>(head_dim); }
  static std::size_t panel_bytes(int head_dim, ScoreModel model) {
    return panel_bytes_of<keys>(code_bytes(head_dim), head_dim, model);
  }
  static Panel make_panel(std::byte* memory, int head_dim, ScoreModel model) {
    return make_panel_of<keys>(memory, code_bytes(head_dim), head_dim, model);
  }

  /// Stored rows in blocks of one size, so that one tile configuration serves a form; the last blocks may end in zero
  /// rows.
  struct Blocks {
    int stored, count, rows;
    static Blocks of(int relu_rows, int aggregate_rows) {
      const int stored = relu_rows + 2 * aggregate_rows;
      const int count = (stored + most_rows - 1) / most_rows;
      return {stored, count, count == 0 ? 0 : (stored + count - 1) / count};
    }
  };

  static std::size_t coefficient_bytes(int relu_rows) {
    return rounded_up(sizeof(float) * static_cast<std::size_t>(relu_rows));
  }
  /// Enough for any division of `rows` into relu rows and at most 4 aggregates.
  static std::size_t form_bytes(int rows, int head_dim) {
    const Blocks most = Blocks::of(rows > 4 ? rows - 4 : 0, rows > 4 ? 4 : rows);
    return coefficient_bytes(rows) + 2 * static_cast<std::size_t>((most.stored + most.count) * head_dim);
  }

  static Form make_form(const FormSpec& spec, ScoreModel model, std::byte* memory) {
    const Form form = form_header(spec, model, memory);
    const Blocks blocks = Blocks::of(spec.relu_rows, spec.aggregate_rows);
    auto* coefficients = reinterpret_cast<float*>(memory);
    for (int j = 0; j < spec.relu_rows; ++j) coefficients[j] = spec.coef[j];
    std::byte* out = memory + coefficient_bytes(spec.relu_rows);
    const int split = spec.relu_rows + spec.aggregate_rows;
    const __m512 factor = _mm512_set1_ps(kRowFactor);
    for (int j = 0; j < blocks.count * blocks.rows; ++j) {
      std::byte* block = out + j / blocks.rows * blocks.rows * spec.head_dim * 2 + j % blocks.rows * 64;
      const bool low = j >= split;
      const float* row = j < blocks.stored ? spec.rows + (low ? j - spec.aggregate_rows : j) * spec.head_dim : nullptr;
      const auto stored = [&](const float* from) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(from), factor);
        const __m512i high = bf16_of(x);
        return low ? bf16_of(_mm512_sub_ps(x, _mm512_castsi512_ps(high))) : high;
      };
      for (int d = 0; d < spec.head_dim; d += 32) {
        const __m512i pair = row == nullptr ? _mm512_setzero_si512() : pairs_of(stored(row + d), stored(row + d + 16));
        _mm512_storeu_si512(block + d * blocks.rows * 2, pair);
      }
    }
    return form;
  }

  struct Sums {
    __m512 sum[4], aggregate[4];
    __m512 high[4][4];  // dot products of the aggregates' hi rows
  };

  /// Rows first .. first + count - 1 of the stored rows from a block's buffer [row][64 keys] into the sums.
  static inline void add_rows(const Form& form, const float* coefficients, const float* buffer, int first, int count,
                              Sums& sums) {
    const int relu = form.relu_rows - first;
    for (int r = 0; r < count; ++r) {
      const float* dots = buffer + r * keys;
      if (r < relu) {
        const __m512 coefficient = _mm512_set1_ps(coefficients[first + r]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          sums.sum[v] = _mm512_fmadd_ps(coefficient, Lanes::relu(_mm512_load_ps(dots + 16 * v)), sums.sum[v]);
        }
      } else if (r - relu < form.aggregate_rows) {
        for (int v = 0; v < 4; ++v) sums.high[r - relu][v] = _mm512_load_ps(dots + 16 * v);
      } else {
        const int a = r - relu - form.aggregate_rows;
        if (a >= form.aggregate_rows) return;  // zero rows
        // NaN and -inf leave the aggregate as it is: a smaller aggregate is a larger bound.
        for (int v = 0; v < 4; ++v) {
          sums.aggregate[v] = Lanes::maximum_or_second(_mm512_add_ps(sums.high[a][v], _mm512_load_ps(dots + 16 * v)),
                                                       sums.aggregate[v]);
        }
      }
    }
  }

  /// One block of rows against 64 keys: four accumulators (tiles 0-3) share each tile of rows (4); tiles 5 and 6 take
  /// the keys in turn. The epilogue of the block before runs between the products of this one: `meanwhile(chunk)`.
  template <class Meanwhile>
  static inline void block_products(const std::byte* rows, int row_count, const std::byte* codes, int chunks,
                                    float* buffer, const Meanwhile& meanwhile) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::byte* key = codes + chunk * 4096;
      Tiles::template load<4>(rows + chunk * row_count * 64, 64);
      Tiles::template load<5>(key, 64);
      Tiles::template multiply_add<0, 4, 5>();
      Tiles::template load<6>(key + 1024, 64);
      Tiles::template multiply_add<1, 4, 6>();
      Tiles::template load<5>(key + 2048, 64);
      Tiles::template multiply_add<2, 4, 5>();
      Tiles::template load<6>(key + 3072, 64);
      Tiles::template multiply_add<3, 4, 6>();
      meanwhile(chunk);
    }
    Tiles::template store<0>(buffer, keys * sizeof(float));
    Tiles::template store<1>(buffer + 16, keys * sizeof(float));
    Tiles::template store<2>(buffer + 32, keys * sizeof(float));
    Tiles::template store<3>(buffer + 48, keys * sizeof(float));
  }

  /// A block of rows whose dot products lie in a buffer and wait for their epilogue.
  struct Pending {
    const ScreenItem* item = nullptr;
    Blocks blocks{};
    int block = 0;
  };

  static inline void start(const Form& form, Sums& sums) {
    for (int v = 0; v < 4; ++v) {
      sums.sum[v] = _mm512_setzero_ps();
      sums.aggregate[v] = _mm512_set1_ps(form.aggregate_floor);
    }
  }

  /// The share of the pending rows that runs under one chunk's products; share `shares` - 1 is the last.
  static inline void advance(const Pending& pending, const float* buffer, int share, int shares, Sums& sums) {
    if (pending.item == nullptr) return;
    const Form& form = *pending.item->form;
    const int each = (pending.blocks.rows + shares - 1) / shares;
    const int first = share * each;
    const int left = pending.blocks.rows - first;
    if (left <= 0) return;
    add_rows(form, reinterpret_cast<const float*>(form.data), buffer + first * keys,
             pending.block * pending.blocks.rows + first, left < each ? left : each, sums);
  }

  static inline void finish(const ScreenItem& item, const Panel& panel, const Sums& sums) {
    const Form& form = *item.form;
    __m512 allowance[4];
    allowances<Lanes>(form, panel.features, keys, allowance);
    for (int v = 0; v < 4; ++v) {
      const __m512 scale = _mm512_loadu_ps(panel.scale + 16 * v);
      if (item.lower == nullptr) {
        const __m512 t = _mm512_add_ps(_mm512_sub_ps(sums.sum[v], sums.aggregate[v]), allowance[v]);
        _mm512_storeu_ps(item.upper + 16 * v, Scaled<Lanes>(form, scale, t).up());
      } else {
        _mm512_storeu_ps(item.upper + 16 * v,
                         Scaled<Lanes>(form, scale, _mm512_add_ps(sums.sum[v], allowance[v])).up());
        _mm512_storeu_ps(item.lower + 16 * v,
                         Scaled<Lanes>(form, scale, _mm512_sub_ps(sums.sum[v], allowance[v])).down());
      }
    }
  }

  /// Rows in order of their block size, so that the tiles are configured once a size: a product takes as many cycles as
  /// the first operand has rows, and a configuration as long as several products.
  static void screen(const ScreenItem* items, int count, const Panel& panel) {
    alignas(64) float buffer[most_rows * keys];  // one is enough: it is read under the products and written after them
    const int chunks = panel.head_dim / 32;
    typename Tiles::Session session;
    Pending pending;
    Sums sums;
    for (int rows = 0; rows <= most_rows; ++rows) {
      for (int i = 0; i < count; ++i) {
        const Form& form = *items[i].form;
        const Blocks blocks = Blocks::of(form.relu_rows, form.aggregate_rows);
        if (blocks.rows != rows) continue;
        if (blocks.count == 0) {
          Sums none;
          start(form, none);
          finish(items[i], panel, none);
          continue;
        }
        session.use(rows);
        const std::byte* data = form.data + coefficient_bytes(form.relu_rows);
        for (int b = 0; b < blocks.count; ++b) {
          block_products(data + b * rows * form.head_dim * 2, rows, panel.data, chunks, buffer,
                         [&](int chunk) { advance(pending, buffer, chunk, chunks, sums); });
          if (b == 0) {
            if (pending.item != nullptr) finish(*pending.item, panel, sums);
            start(form, sums);
          }
          pending = {&items[i], blocks, b};
        }
      }
    }
    if (pending.item != nullptr) {
      advance(pending, buffer, 0, 1, sums);
      finish(*pending.item, panel, sums);
    }
  }

  // NOLINTBEGIN(readability-non-const-parameter): written through the item
  static void upper(const Form& form, const Panel& panel, float* upper) {
    const ScreenItem item{&form, nullptr, upper};
    screen(&item, 1, panel);
  }

  static void bounds(const Form& form, const Panel& panel, float* lower, float* upper) {
    const ScreenItem item{&form, lower, upper};
    screen(&item, 1, panel);
  }
  // NOLINTEND(readability-non-const-parameter)

  static void dots(const Form& form, int wanted, const Panel& panel, float* dots) {
    const Blocks blocks = Blocks::of(form.relu_rows, form.aggregate_rows);
    if (blocks.count == 0) return;
    const std::byte* rows = form.data + coefficient_bytes(form.relu_rows);
    const int last =
        wanted > form.relu_rows ? wanted + form.aggregate_rows : wanted;  // one past the stored rows needed
    alignas(64) float buffer[most_rows * keys];
    typename Tiles::Session session;
    session.use(blocks.rows);
    for (int b = 0; b * blocks.rows < last; ++b) {
      block_products(rows + b * blocks.rows * form.head_dim * 2, blocks.rows, panel.data, form.head_dim / 32, buffer,
                     [](int) {});
      for (int r = 0; r < blocks.rows; ++r) {
        const int stored = b * blocks.rows + r;
        const bool low = stored >= form.relu_rows + form.aggregate_rows;
        const int row = low ? stored - form.aggregate_rows : stored;
        if (stored >= blocks.stored || row >= wanted) continue;
        float* out = dots + row * keys;
        for (int v = 0; v < 4; ++v) {
          const __m512 x = _mm512_load_ps(buffer + r * keys + 16 * v);
          _mm512_storeu_ps(out + 16 * v, low ? _mm512_add_ps(x, _mm512_loadu_ps(out + 16 * v)) : x);
        }
      }
    }
  }
};

}  // namespace
}  // namespace dosa::cpu
