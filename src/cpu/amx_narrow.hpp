// Screening of narrow forms (T11 of docs/certificate.md) by tiles of bytes: TDPBSSD multiplies twice as many numbers as
// TDPBF16PS in the same 16 cycles, and reads half the bytes. Unnamed namespace: see panel_kernels.hpp.
//
// Panel: [64 dimensions][4 blocks of 16 keys][16 x 4 dimensions][16 keys][4] bytes. Form: factors [blocks][16], then
// for each block [64 dimensions][16 rows][64] bytes. Relu rows come first; the two rows of each aggregate, high and
// low, are the last of the last block, and rows of zeros lie between: so all but the last rows are relu rows without
// asking. Dimensions beyond the head's are zero on both sides.
#pragma once

#include <cstring>

#include "cpu/amx_block.hpp"
#include "cpu/intrinsics.hpp"
#include "cpu/keep_avx512.hpp"
#include "cpu/pack_narrow_avx512.hpp"
#include "cpu/panel_kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

template <class Tiles>
struct NarrowScreen {
  using Lanes = Lanes512x4;
  using Products = TileBlock<Tiles, true>;
  static constexpr int keys = Lanes::panel_keys;
  static constexpr int rows = 16;

  static int chunks_of(int head_dim) { return (head_dim + 63) / 64; }
  static int blocks_of(int relu_rows, int aggregate_rows) {
    const int slots = relu_rows + 2 * aggregate_rows;
    return slots == 0 ? 1 : (slots + rows - 1) / rows;
  }
  static std::size_t factor_bytes(int blocks) { return sizeof(float) * rows * static_cast<std::size_t>(blocks); }
  static std::size_t block_bytes(int head_dim) { return 64 * rows * static_cast<std::size_t>(chunks_of(head_dim)); }

  /// For up to `stored` relu and aggregate rows, of which up to four are aggregates.
  static std::size_t form_bytes(int stored, int head_dim) {
    const int blocks = blocks_of(stored, 2);
    return factor_bytes(blocks) + static_cast<std::size_t>(blocks) * block_bytes(head_dim);
  }

  static void fill_form(const FormSpec& spec, std::byte* memory) {
    const int blocks = blocks_of(spec.relu_rows, spec.aggregate_rows);
    auto* const factors = reinterpret_cast<float*>(memory);
    std::byte* const data = memory + factor_bytes(blocks);
    std::memset(memory, 0, factor_bytes(blocks) + static_cast<std::size_t>(blocks) * block_bytes(spec.head_dim));
    const auto put = [&](int slot, float factor, const std::int8_t* row) {
      factors[slot] = factor;
      std::byte* const to =
          data + static_cast<std::size_t>(slot / rows) * block_bytes(spec.head_dim) + slot % rows * 64;
      for (int d = 0; d < spec.head_dim; d += 64)
        std::memcpy(to + d * rows, row + d, static_cast<std::size_t>(spec.head_dim - d < 64 ? 32 : 64));
    };
    const auto row_at = [&](int j) { return spec.narrow + j * spec.head_dim; };
    for (int j = 0; j < spec.relu_rows; ++j) put(j, spec.narrow_factor[j], row_at(j));
    const int first = blocks * rows - 2 * spec.aggregate_rows;
    for (int a = 0; a < spec.aggregate_rows; ++a) {
      const float factor = spec.narrow_factor[spec.relu_rows + a];
      put(first + 2 * a, factor, row_at(spec.relu_rows + 2 * a));
      put(first + 2 * a + 1, factor, row_at(spec.relu_rows + 2 * a + 1));
    }
  }

  /// Sums of a block with four groups of 16 keys: [group][row][16].
  struct alignas(4096) Buffer {
    std::int32_t dots[4][rows * 16];
  };

  /// What receives a form's bounds: a row what reaches its floor, or arrays all of them (null: no lower ones).
  struct Target {
    ScreenRow* row = nullptr;
    float *lower = nullptr, *upper = nullptr;
  };

  /// A block of a form with a panel.
  struct Unit {
    const Form* form = nullptr;
    Target to{};
    const Panel* panel = nullptr;
    std::int32_t base = 0;
    int aggregates = 0;  // whose rows are the block's last
    bool opens = false, closes = false;
    const float* factors = nullptr;
    const std::byte* data = nullptr;
  };

  /// What a form's relu rows add up to, a register a group of keys: no array, and a local variable where it is used
  /// (see amx_panels.hpp).
  struct Sums {
    __m512 sum0, sum1, sum2, sum3;

    template <int g>
    [[gnu::always_inline]] __m512& of() {
      if constexpr (g == 0) return sum0;
      if constexpr (g == 1) return sum1;
      if constexpr (g == 2) return sum2;
      if constexpr (g == 3) return sum3;
    }
  };

  /// Products of at most 256 numbers below 2^7 are integers below 2^24: exact in F32.
  [[gnu::always_inline]] static __m512 dots_of(const std::int32_t* dots) {
    return _mm512_cvtepi32_ps(_mm512_load_si512(dots));
  }
  [[gnu::always_inline]] static __m512 add_relu(const Unit& unit, const std::int32_t* dots, int r, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(unit.factors[r]), Lanes::relu(dots_of(dots + 16 * r)), sum);
  }

  /// The bounds of group g, 16 keys: the computed sum, give or take the allowance.
  template <int g>
  struct Bounds {
    const Form& form;
    __m512 step, scale, sum, allowance;

    [[gnu::always_inline]] Bounds(const Unit& unit, __m512 relu_sum) : form(*unit.form), sum(relu_sum) {
      const Panel& panel = *unit.panel;
      const float* const features = panel.features + 16 * g;
      allowance = _mm512_fmadd_ps(_mm512_set1_ps(form.allow[kNorm]), _mm512_loadu_ps(features + kNorm * keys),
                                  _mm512_set1_ps(form.constant));
      for (int f = kModel; f < form.feature_count; ++f)
        allowance = _mm512_fmadd_ps(_mm512_set1_ps(form.allow[f]), _mm512_loadu_ps(features + f * keys), allowance);
      allowance =
          _mm512_fmadd_ps(_mm512_set1_ps(form.allow_residual), _mm512_loadu_ps(panel.residual + 16 * g), allowance);
      step = _mm512_loadu_ps(panel.step + 16 * g);
      scale = _mm512_loadu_ps(panel.scale + 16 * g);
    }

    [[gnu::always_inline]] __m512 upper(const Unit& unit, const std::int32_t* dots) const {
      __m512 largest = _mm512_set1_ps(form.aggregate_floor);
      for (int r = rows - 2 * unit.aggregates; r < rows; r += 2) {
        const __m512 both =
            _mm512_fmadd_ps(_mm512_set1_ps(128.0F), dots_of(dots + 16 * r), dots_of(dots + 16 * r + 16));
        largest = _mm512_max_ps(_mm512_mul_ps(_mm512_set1_ps(unit.factors[r]), both), largest);
      }
      const __m512 most = _mm512_fmadd_ps(step, _mm512_sub_ps(sum, largest), allowance);
      return within_limit(finite_or<kUp>(Scaled<Lanes>(form, scale, most).sum()), __builtin_inff());
    }
    /// Only without aggregates.
    [[gnu::always_inline]] __m512 lower() const {
      const __m512 least = _mm512_fmsub_ps(step, sum, allowance);
      return within_limit(finite_or<kDown>(Scaled<Lanes>(form, scale, least).difference()), -__builtin_inff());
    }
    [[gnu::always_inline]] __m512 within_limit(__m512 bound, float beyond) const {
      if (form.scale_limit == __FLT_MAX__) return bound;
      const __mmask16 over = _mm512_cmp_ps_mask(scale, _mm512_set1_ps(form.scale_limit), _CMP_NLE_UQ);
      return _mm512_mask_blend_ps(over, bound, _mm512_set1_ps(beyond));
    }
  };

  /// What Scaled::up() and down() make of sums that overflowed or of a key whose scale disqualifies it (stored as NaN),
  /// in one instruction: by the class of each lane an infinity (5 and 4) for NaN and infinities, the number itself (1)
  /// for others.
  static constexpr int kUp = 0x11551155, kDown = 0x11441144;
  template <int otherwise>
  [[gnu::always_inline]] static __m512 finite_or(__m512 bound) {
    return _mm512_fixupimm_ps(bound, bound, _mm512_set1_epi32(otherwise), 0);
  }

  /// The epilogue of a unit's group g, whose dots lie in `dots`; in two parts, for there are two products to hide it
  /// under.
  template <int g>
  [[gnu::always_inline]] static void first_part(const Unit& unit, const std::int32_t* dots, Sums& sums) {
    __m512 sum = unit.opens ? _mm512_setzero_ps() : sums.template of<g>(), other = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int r = 0; r < 8; r += 2) {
      sum = add_relu(unit, dots, r, sum);
      other = add_relu(unit, dots, r + 1, other);
    }
    sums.template of<g>() = _mm512_add_ps(sum, other);
  }
  template <int g>
  [[gnu::always_inline]] static void second_part(const Unit& unit, const std::int32_t* dots, Sums& sums) {
    __m512 sum = sums.template of<g>(), other = _mm512_setzero_ps();
    if (unit.aggregates <= 2) {
#pragma GCC unroll 4
      for (int r = 8; r < 12; r += 2) {
        sum = add_relu(unit, dots, r, sum);
        other = add_relu(unit, dots, r + 1, other);
      }
      if (unit.aggregates <= 1) {
        sum = add_relu(unit, dots, 12, sum);
        other = add_relu(unit, dots, 13, other);
      }
      if (unit.aggregates == 0) {
        sum = add_relu(unit, dots, 14, sum);
        other = add_relu(unit, dots, 15, other);
      }
    } else {
      for (int r = 8; r < rows - 2 * unit.aggregates; ++r) sum = add_relu(unit, dots, r, sum);
    }
    sum = _mm512_add_ps(sum, other);
    sums.template of<g>() = sum;
    if (!unit.closes) return;
    const Bounds<g> bounds(unit, sum);
    const __m512 upper = bounds.upper(unit, dots);
    ScreenRow* const row = unit.to.row;
    if (row == nullptr) {
      _mm512_storeu_ps(unit.to.upper + 16 * g, upper);
      if (unit.to.lower != nullptr) _mm512_storeu_ps(unit.to.lower + 16 * g, bounds.lower());
    } else if (row->lower) {
      const __m512 lower = bounds.lower();
      keep_group(*row, *unit.panel, unit.base, 16 * g, upper,
                 [&](const PassedLanes& passed, float* to) { passed.store(to, lower); });
    } else {
      keep_group(*row, *unit.panel, unit.base, 16 * g, upper, [](const PassedLanes&, float*) {});
    }
  }

  /// Groups of 16 keys one after another, four a unit, each in the accumulator and the buffer of its number. A step
  /// begins the products of one group (its first 64 dimensions), continues those of the group before, stores the sums
  /// of the group before that, and is the epilogue of the one three steps further back: what tiles store cannot be
  /// forwarded to loads and takes its time to the cache, and a load waits for any store on its way whose address has
  /// the same lowest twelve bits: so the buffers are one page together, and none of the three last stored to is read.
  class Pipeline {
   public:
    [[gnu::always_inline]] void unit(const Form& form, const Target& to, const Panel& panel, std::int32_t base, int b,
                                     int blocks, Sums& sums) {
      Unit& now = next();
      now.form = &form;
      now.to = to;
      now.panel = &panel;
      now.base = base;
      now.opens = b == 0;
      now.closes = b + 1 == blocks;
      now.aggregates = now.closes ? form.aggregate_rows : 0;
      now.factors = reinterpret_cast<const float*>(form.data) + b * rows;
      now.data = form.data + factor_bytes(blocks) + static_cast<std::size_t>(b) * block_bytes(form.head_dim);
      if (older_->form != nullptr) {
        steps<true>(sums);
      } else {
        steps<false>(sums);
      }
    }

    /// Two more units of nothing: what is in flight arrives.
    void drain(Sums& sums) {
      for (int i = 0; i < 2; ++i) {
        next().form = nullptr;
        steps<false>(sums);
      }
    }

   private:
    /// Rotated, never copied: a copy by wide registers of what narrow ones wrote a moment ago waits until those writes
    /// reach the cache.
    Unit& next() {
      Unit* const oldest = older_;
      older_ = old_;
      old_ = now_;
      return *(now_ = oldest);
    }

    /// all: none of the three units is nothing.
    template <bool all>
    [[gnu::always_inline]] void steps(Sums& sums) {
      step<0, all>(*old_, *older_, sums);
      if (all || now_->form != nullptr) Tiles::template load<7>(now_->data + rows * 64, 64);
      step<1, all>(*now_, *old_, sums);
      step<2, all>(*now_, *old_, sums);
      step<3, all>(*now_, *old_, sums);
    }

    /// continued: whose group before this one is multiplied further; waits: whose group five steps back has its
    /// epilogue.
    template <int g, bool all>
    [[gnu::always_inline]] void step(const Unit& continued, const Unit& waits, Sums& sums) {
      constexpr int before = (g + 3) % 4, stored = (g + 2) % 4;
      const std::int32_t* const dots = buffer_.dots[before];
      if (all || now_->form != nullptr) {
        if constexpr (g == 0) Tiles::template load<4>(now_->data, 64);
        Tiles::template load<5>(now_->panel->narrow + 1024 * g, 64);
        Tiles::template zero<g>();
        Tiles::template multiply_add_bytes<g, 4, 5>();
      }
      if (all || waits.form != nullptr) first_part<before>(waits, dots, sums);
      Tiles::template store<stored>(buffer_.dots[stored], 64);
      if (all || continued.form != nullptr) {
        Tiles::template load<6>(continued.panel->narrow + Products::chunk_bytes + 1024 * before, 64);
        Tiles::template multiply_add_bytes<before, 7, 6>();
      }
      if (all || waits.form != nullptr) second_part<before>(waits, dots, sums);
    }

    Buffer buffer_;
    Unit units_[3];
    Unit *now_ = &units_[0], *old_ = &units_[1], *older_ = &units_[2];
  };

  /// Forms of other than 65 to 128 dimensions: a unit at a time, nothing hidden.
  [[gnu::noinline]] static void unit_alone(const Form& form, const Target& to, const Panel& panel, std::int32_t base) {
    const int blocks = blocks_of(form.relu_rows, form.aggregate_rows), chunks = chunks_of(form.head_dim);
    Buffer buffer;
    Sums sums{};
    for (int b = 0; b < blocks; ++b) {
      const std::byte* const data =
          form.data + factor_bytes(blocks) + static_cast<std::size_t>(b) * block_bytes(form.head_dim);
      Products::template chunk<true>(data, panel.narrow, nullptr);
      for (int c = 1; c < chunks; ++c)
        Products::template chunk<false>(data + c * rows * 64, panel.narrow + c * Products::chunk_bytes, nullptr);
      const Unit unit{&form,
                      to,
                      &panel,
                      base,
                      b + 1 == blocks ? form.aggregate_rows : 0,
                      b == 0,
                      b + 1 == blocks,
                      reinterpret_cast<const float*>(form.data) + b * rows,
                      data};
      const auto group = [&]<int g>() __attribute__((always_inline)) {
        Tiles::template store<g>(buffer.dots[g], 64);
        first_part<g>(unit, buffer.dots[g], sums);
        second_part<g>(unit, buffer.dots[g], sums);
      };
      group.template operator()<0>();
      group.template operator()<1>();
      group.template operator()<2>();
      group.template operator()<3>();
    }
  }

  static void screen(ScreenRow* const* list, int count, const Panel* panels, int panel_count, std::int32_t base,
                     typename Tiles::Session& session) {
    session.use(rows);
    const bool usual = chunks_of(panels->head_dim) == 2;
    Pipeline pipeline;
    Sums sums{};
    for (int i = 0; i < count; ++i) {
      const Form& form = *list[i]->form;
      const int blocks = blocks_of(form.relu_rows, form.aggregate_rows);
      if (i + 1 < count) fetch_row(*list[i + 1]);
      for (std::int64_t at = 0; at < list[i]->ahead_bytes; at += 64) __builtin_prefetch(list[i]->ahead + at, 0, 2);
      std::int32_t first = base;
      for (int p = 0; p < panel_count; ++p, first += keys) {
        if (SeenLanes(*list[i], first, panels[p].count).none()) continue;
        if (!usual) {
          unit_alone(form, {list[i]}, panels[p], first);
          continue;
        }
        for (int b = 0; b < blocks; ++b) pipeline.unit(form, {list[i]}, panels[p], first, b, blocks, sums);
      }
    }
    if (usual) pipeline.drain(sums);
  }

  // NOLINTNEXTLINE(readability-non-const-parameter): written through the unit
  static void bounds(const Form& form, const Panel& panel, float* lower, float* upper) {
    typename Tiles::Session session;
    session.use(rows);
    const Target to{nullptr, lower, upper};
    if (chunks_of(panel.head_dim) != 2) return unit_alone(form, to, panel, 0);
    Pipeline pipeline;
    Sums sums{};
    const int blocks = blocks_of(form.relu_rows, form.aggregate_rows);
    for (int b = 0; b < blocks; ++b) pipeline.unit(form, to, panel, 0, b, blocks, sums);
    pipeline.drain(sums);
  }

  /// The forms of a tile's rows take more than the first-level cache, and so do the lines that their lists go on in.
  [[gnu::always_inline]] static void fetch_row(const ScreenRow& row) {
    const Form& form = *row.form;
    const int blocks = blocks_of(form.relu_rows, form.aggregate_rows);
    const std::size_t bytes = factor_bytes(blocks) + static_cast<std::size_t>(blocks) * block_bytes(form.head_dim);
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(form.data + at, 0, 3);
    fetch_lists(row);
  }
};

}  // namespace
}  // namespace dosa::cpu
