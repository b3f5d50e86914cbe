// The bf16 tile kernels over a small tile interface, so that the same code runs on the processor's tiles
// (kernels_amx.cpp) and on an emulation (kernels_emulated_amx.cpp). Unnamed namespace: see panel_kernels.hpp.
//
// Panel: 64 keys as [D/32][4 blocks of 16 keys][16 pairs of dimensions][16 keys][2] bf16: one tile of the second
// operand is 1 KiB in a row. Which dimensions are a pair is packing's choice (pack_bf16_avx512.hpp): the order is free
// as long as rows use the same. Form: coefficients, then for each block of R <= 16 rows [D/32][R][16 pairs][2] bf16. An
// aggregate row is rounded to bf16. Behind the rows, where none is an aggregate: the heads once more, for keys that are
// gathered (amx_gather.hpp).
#pragma once

#include "cpu/amx_gather.hpp"
#include "cpu/bf16_avx512.hpp"
#include "cpu/intrinsics.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/pack_bf16_avx512.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/table_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

struct Lanes512x4 : Lanes512 {
  static constexpr int vectors = 4, panel_keys = 64;
};

struct TileSink {
  static constexpr int panel_keys = 64;
  static void store(std::byte* data, int group, int chunk, int pair, __m512i pairs) {
    _mm512_store_si512(data + chunk * 4096 + group * 1024 + pair * 64, pairs);
  }
  /// VDPBF16PS would be one more demand on the processor, and those with tiles are slow at it
  /// (bench/results/amx-emerald-rapids-*.md).
  static void add_squares(__m512i pairs, int pair, __m512 (&sum)[4]) {
    const __m512 low = low_of(pairs), high = high_of(pairs);
    sum[pair % 2] = _mm512_fmadd_ps(low, low, sum[pair % 2]);
    sum[2 + pair % 2] = _mm512_fmadd_ps(high, high, sum[2 + pair % 2]);
  }
};

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

  /// Rows in blocks of one size, so that one tile configuration serves a form; the last blocks may end in zero
  /// rows.
  struct Blocks {
    int stored, count, rows;
    static Blocks of(int stored) {
      const int count = (stored + most_rows - 1) / most_rows;
      return {stored, count, count == 0 ? 0 : (stored + count - 1) / count};
    }
    static Blocks of(const Form& form) { return of(form.relu_rows + form.aggregate_rows); }
  };

  static std::size_t coefficient_bytes(int relu_rows) {
    return rounded_up(sizeof(float) * static_cast<std::size_t>(relu_rows));
  }
  static std::size_t form_bytes(int rows, int head_dim) {
    const Blocks most = Blocks::of(rows);
    return coefficient_bytes(rows) + 2 * static_cast<std::size_t>((most.stored + most.count) * head_dim) +
           GatherHeads::bytes(rows, head_dim);
  }
  /// Where the heads of a form without aggregate rows are for keys that are gathered.
  static std::size_t gather_heads_at(const Form& form) {
    const Blocks blocks = Blocks::of(form);
    return coefficient_bytes(form.relu_rows) + 2 * static_cast<std::size_t>(blocks.count * blocks.rows * form.head_dim);
  }

  static Form make_form(const FormSpec& spec, ScoreModel model, std::byte* memory) {
    const Form form = form_header(spec, model, memory);
    const Blocks blocks = Blocks::of(form);
    auto* coefficients = reinterpret_cast<float*>(memory);
    for (int j = 0; j < spec.relu_rows; ++j) coefficients[j] = spec.coef[j];
    std::byte* out = memory + coefficient_bytes(spec.relu_rows);
    const auto row_at = [&](int j, int chunk) {
      const int block = j / blocks.rows, rows_before = block * spec.head_dim / 32 + chunk;
      return out + 64 * (rows_before * blocks.rows + j % blocks.rows);
    };
    for (int j = 0; j < blocks.count * blocks.rows; ++j) {
      const float* row = j < blocks.stored ? spec.rows + j * spec.head_dim : nullptr;
      for (int d = 0; d < spec.head_dim; d += 32) {
        _mm512_storeu_si512(row_at(j, d / 32), row == nullptr ? _mm512_setzero_si512() : row_pairs(row + d));
      }
    }
    if (spec.aggregate_rows == 0) GatherHeads::make(spec, memory + gather_heads_at(form), row_at);
    return form;
  }

  /// Dot products of a block of rows with 64 keys: [row][64].
  struct alignas(64) Buffer {
    float dots[most_rows * keys];
  };

  /// What an item's relu rows add up to, and the largest of its aggregate rows. No arrays, and a local variable where
  /// it is used: in memory, each chunk's sums would wait for the stores of the chunk before.
  struct Sums {
    __m512 sum0, sum1, sum2, sum3;
    __m512 largest0, largest1, largest2, largest3;
  };

  /// A block of rows on its way to its epilogue; never copied: a copy by wide registers of what narrow ones wrote a
  /// moment ago waits until those writes reach the cache, behind all the products in flight.
  struct Pending {
    const ScreenItem* item = nullptr;
    float* dots = nullptr;                // [rows][64]
    const float* coefficients = nullptr;  // of its relu rows
    int rows = 0,
        relu_rows =
            0;  // no rows: nothing waits; relu rows come first; the last block of an item may end in rows of zeros,
    int stored_rows = 0;                 // and a zero may be more than what the aggregates come to
    int share = 0;                       // rows whose epilogue runs under one chunk's products
    bool opens = false, closes = false;  // the item's first and last block
  };

  [[gnu::always_inline]] static void add_relu_row(float coefficient, const float* dots, Sums& sums) {
    const __m512 c = _mm512_set1_ps(coefficient);
    sums.sum0 = _mm512_fmadd_ps(c, Lanes::relu(_mm512_load_ps(dots)), sums.sum0);
    sums.sum1 = _mm512_fmadd_ps(c, Lanes::relu(_mm512_load_ps(dots + 16)), sums.sum1);
    sums.sum2 = _mm512_fmadd_ps(c, Lanes::relu(_mm512_load_ps(dots + 32)), sums.sum2);
    sums.sum3 = _mm512_fmadd_ps(c, Lanes::relu(_mm512_load_ps(dots + 48)), sums.sum3);
  }

  /// NaN and -inf leave the aggregate as it is: a smaller aggregate is a larger bound.
  [[gnu::always_inline]] static void add_aggregate_rows(const float* dots, int count, Sums& sums) {
    Sums added = sums;
    for (; count > 0; --count, dots += keys) {
      added.largest0 = Lanes::maximum_or_second(_mm512_load_ps(dots), added.largest0);
      added.largest1 = Lanes::maximum_or_second(_mm512_load_ps(dots + 16), added.largest1);
      added.largest2 = Lanes::maximum_or_second(_mm512_load_ps(dots + 32), added.largest2);
      added.largest3 = Lanes::maximum_or_second(_mm512_load_ps(dots + 48), added.largest3);
    }
    sums = added;
  }

  /// Rows from .. to - 1 of a pending block into the sums.
  [[gnu::always_inline]] static void add_rows(const Pending& pending, int from, int to, Sums& sums) {
    const int relu_to = to < pending.relu_rows ? to : pending.relu_rows;
    for (int r = from; r < relu_to; ++r) add_relu_row(pending.coefficients[r], pending.dots + r * keys, sums);
    const int aggregate_from = from > pending.relu_rows ? from : pending.relu_rows;
    const int aggregate_to = to < pending.stored_rows ? to : pending.stored_rows;
    if (aggregate_from < aggregate_to)
      add_aggregate_rows(pending.dots + aggregate_from * keys, aggregate_to - aggregate_from, sums);
  }

  /// The share of the pending rows that runs under one chunk's products. Mostly four relu rows (16 over the four chunks
  /// of 128 dimensions): without a loop, whose end would be guessed wrong now and then.
  [[gnu::always_inline]] static void advance(const Pending& pending, int chunk, Sums& sums) {
    const int from = chunk * pending.share, to = from + pending.share;
    if (pending.share == 4 && to <= pending.relu_rows) {
      const float* const coefficients = pending.coefficients + from;
      const float* const dots = pending.dots + from * keys;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) add_relu_row(coefficients[r], dots + r * keys, sums);
      return;
    }
    add_rows(pending, from, to < pending.rows ? to : pending.rows, sums);
  }

  template <int tile>
  static inline void store_and_clear(float* previous) {
    if (previous != nullptr) Tiles::template store<tile>(previous + 16 * tile, keys * sizeof(float));
    Tiles::template zero<tile>();
  }

  /// One chunk of 32 dimensions of a block of rows against 64 keys: four accumulators (tiles 0-3) share each tile of
  /// rows (4); tiles 5 and 6 take the keys in turn. The first chunk stores what each accumulator still holds of the
  /// block before just before it needs it: at the end of that block the stores would wait for its last products with
  /// nothing to do meanwhile.
  template <bool first>
  [[gnu::always_inline]] static void chunk_products(const std::byte* rows, const std::byte* key, float* previous) {
    Tiles::template load<4>(rows, 64);
    Tiles::template load<5>(key, 64);
    if constexpr (first) store_and_clear<0>(previous);
    Tiles::template multiply_add<0, 4, 5>();
    Tiles::template load<6>(key + 1024, 64);
    if constexpr (first) store_and_clear<1>(previous);
    Tiles::template multiply_add<1, 4, 6>();
    Tiles::template load<5>(key + 2048, 64);
    if constexpr (first) store_and_clear<2>(previous);
    Tiles::template multiply_add<2, 4, 5>();
    Tiles::template load<6>(key + 3072, 64);
    if constexpr (first) store_and_clear<3>(previous);
    Tiles::template multiply_add<3, 4, 6>();
  }

  template <class Meanwhile>
  [[gnu::always_inline]] static void block_products(const std::byte* rows, int row_count, const std::byte* codes,
                                                    int chunks, float* previous, const Meanwhile& meanwhile) {
    const auto chunk_after = [&](int chunk) __attribute__((always_inline)) {
      chunk_products<false>(rows + chunk * row_count * 64, codes + chunk * 4096, nullptr);
      meanwhile(chunk);
    };
    chunk_products<true>(rows, codes, previous);
    meanwhile(0);
    if (chunks == 4) {  // 128 dimensions
      chunk_after(1);
      chunk_after(2);
      chunk_after(3);
      return;
    }
    for (int chunk = 1; chunk < chunks; ++chunk) chunk_after(chunk);
  }

  static void store_block(float* dots) {
    Tiles::template store<0>(dots, keys * sizeof(float));
    Tiles::template store<1>(dots + 16, keys * sizeof(float));
    Tiles::template store<2>(dots + 32, keys * sizeof(float));
    Tiles::template store<3>(dots + 48, keys * sizeof(float));
  }

  [[gnu::always_inline]] static void start(const Form& form, Sums& sums) {
    const __m512 zero = _mm512_setzero_ps(), floor = _mm512_set1_ps(form.aggregate_floor);
    sums = {zero, zero, zero, zero, floor, floor, floor, floor};
  }

  [[gnu::always_inline]] static void finish(const ScreenItem& item, const Panel& panel, const Sums& sums) {
    if (item.lower == nullptr) {
      finish_as<false>(item, panel, sums);
    } else {
      finish_as<true>(item, panel, sums);
    }
  }

  template <bool with_lower>
  [[gnu::always_inline]] static void finish_as(const ScreenItem& item, const Panel& panel, const Sums& sums) {
    const Form& form = *item.form;
    const __m512 sum[4] = {sums.sum0, sums.sum1, sums.sum2, sums.sum3};
    const __m512 largest[4] = {sums.largest0, sums.largest1, sums.largest2, sums.largest3};
    __m512 allowance[4], most[4], least[4];  // what the scale multiplies
    allowances<Lanes>(form, panel.features, keys, allowance);
    for (int v = 0; v < 4; ++v) {
      most[v] = _mm512_add_ps(with_lower ? sum[v] : _mm512_sub_ps(sum[v], largest[v]), allowance[v]);
      if constexpr (with_lower) least[v] = _mm512_sub_ps(sum[v], allowance[v]);
    }
    if (item.keeping != nullptr) return keep<with_lower>(form, panel.scale, most, least, *item.keeping);
    for (int v = 0; v < 4; ++v) {
      const __m512 scale = _mm512_loadu_ps(panel.scale + 16 * v);
      _mm512_storeu_ps(item.upper + 16 * v, Scaled<Lanes>(form, scale, most[v]).up());
      if constexpr (with_lower) _mm512_storeu_ps(item.lower + 16 * v, Scaled<Lanes>(form, scale, least[v]).down());
    }
  }

  /// Bounds of the keys that reach the floor, straight from the registers: written for all keys and read again, they
  /// would push forms out of the first-level cache. `most`, `least`: what the scale multiplies.
  template <bool with_lower>
  [[gnu::always_inline]] static void keep(const Form& form, const float* scales, const __m512* most,
                                          const __m512* least, Keeping& kept) {
    const __m512 floor = _mm512_set1_ps(kept.floor);
    const std::uint64_t lanes = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(kept.last)) &
                                ~_bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(kept.first));
    __m512 upper[4];
    __mmask16 reach[4];
    for (int v = 0; v < 4; ++v) {
      upper[v] = Scaled<Lanes>(form, _mm512_loadu_ps(scales + 16 * v), most[v]).up();
      reach[v] = _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(lanes >> static_cast<unsigned>(16 * v)), upper[v],
                                         floor, _CMP_NLT_UQ);
    }
    std::int64_t found = 0;
    if (_kortestz_mask16_u8(_kor_mask16(reach[0], reach[1]), _kor_mask16(reach[2], reach[3])) == 0) {
      for (int v = 0; v < 4; ++v) {
        const PassedLanes passed(reach[v]);
        passed.store(kept.to.key + found, lane_numbers(kept.base + 16 * v));
        passed.store(kept.to.upper + found, upper[v]);
        if constexpr (with_lower)
          passed.store(kept.to.lower + found, Scaled<Lanes>(form, _mm512_loadu_ps(scales + 16 * v), least[v]).down());
        found += passed.count;
      }
    }
    kept.count = found;
  }

  /// The blocks of many items one after another. While the products of one run, the dot products of the block before
  /// lie in the accumulators and the epilogue of the block before that reads its buffer: what tiles store cannot be
  /// forwarded to loads, so a buffer is read a block after it was written.
  class Screening {
   public:
    /// What tiles are stored to, apart from what may stay in registers.
    struct Memory {
      Buffer buffers[2];
      Pending pending[2];
    };

    Screening(const Panel& panel, Memory& memory)
        : panel_(panel), pending_(memory.pending), chunks_(panel.head_dim / 32) {
      for (int i = 0; i < 2; ++i) pending_[i].dots = memory.buffers[i].dots;
    }

    [[gnu::always_inline]] void block(const ScreenItem& item, const Blocks& blocks, int b, int share, Sums& sums) {
      const Form& form = *item.form;
      const int rows = blocks.rows;
      if (rows != configured_) reconfigure(rows, sums);
      const std::byte* data = form.data + coefficient_bytes(form.relu_rows) + b * rows * form.head_dim * 2;
      const Pending& waits = stored();
      begin(waits, sums);
      block_products(
          data, rows, panel_.data, chunks_,
          in_tiles().dots, [&](int chunk) __attribute__((always_inline)) { advance(waits, chunk, sums); });
      end(waits, sums);
      const int first = b * rows, relu_left = form.relu_rows - first, stored_left = blocks.stored - first;
      Pending& fresh = next();
      fresh.item = &item;
      fresh.coefficients = reinterpret_cast<const float*>(form.data) + first;
      fresh.rows = rows;
      fresh.relu_rows = relu_left < 0 ? 0 : relu_left < rows ? relu_left : rows;
      fresh.stored_rows = stored_left < rows ? stored_left : rows;
      fresh.share = share;
      fresh.opens = b == 0;
      fresh.closes = b + 1 == blocks.count;
    }

    [[gnu::always_inline]] void drain(Sums& sums) {
      if (configured_ == 0) return;
      retire(sums);
      retire(sums);
    }

   private:
    [[gnu::always_inline]] static void begin(const Pending& pending, Sums& sums) {
      if (pending.opens) start(*pending.item->form, sums);
    }
    [[gnu::always_inline]] void end(const Pending& pending, const Sums& sums) const {
      if (pending.closes) finish(*pending.item, panel_, sums);
    }

    Pending& stored() { return pending_[turn_]; }
    Pending& in_tiles() { return pending_[turn_ ^ 1]; }
    /// What was stored has ended, what lies in the tiles will be stored next; the place for the block that follows.
    Pending& next() {
      turn_ ^= 1;
      return in_tiles();
    }

    /// Ends the block that waits in a buffer and empties the accumulators into the other.
    [[gnu::always_inline]] void retire(Sums& sums) {
      store_block(in_tiles().dots);
      const Pending& waits = stored();
      begin(waits, sums);
      add_rows(waits, 0, waits.rows, sums);
      end(waits, sums);
      Pending& none = next();
      none.rows = none.relu_rows = none.stored_rows = 0;
      none.opens = none.closes = false;
    }

    /// A new configuration clears all tiles.
    [[gnu::always_inline]] void reconfigure(int rows, Sums& sums) {
      if (configured_ != 0) retire(sums);
      session_.use(rows);
      configured_ = rows;
    }

    const Panel& panel_;
    Pending* const pending_;
    typename Tiles::Session session_;
    int turn_ = 0, chunks_, configured_ = 0;
  };

  /// Rows in order of their block size, so that the tiles are configured once a size: a product takes as many cycles as
  /// the first operand has rows, and a configuration as long as several products.
  static void screen(const ScreenItem* items, int count, const Panel& panel) {
    constexpr int most = 64;  // items sorted at a time
    for (; count > most; items += most, count -= most) screen_some(items, most, panel);
    screen_some(items, count, panel);
  }

  static void screen_some(const ScreenItem* items, int count, const Panel& panel) {
    Blocks blocks[64];
    unsigned sizes = 0;
    for (int i = 0; i < count; ++i) {
      blocks[i] = Blocks::of(*items[i].form);
      sizes |= 1U << static_cast<unsigned>(blocks[i].rows);
    }
    Sums sums{};
    typename Screening::Memory memory;
    Screening screening(panel, memory);
    const int chunks = panel.head_dim / 32;
    for (int rows = 0; rows <= most_rows; ++rows) {
      if ((sizes >> static_cast<unsigned>(rows) & 1U) == 0) continue;
      const int share = (rows + chunks - 1) / chunks;
      for (int i = 0; i < count; ++i) {
        if (blocks[i].rows != rows) continue;
        if (rows == 0) {
          start(*items[i].form, sums);
          finish(items[i], panel, sums);
        }
        for (int b = 0; b < blocks[i].count; ++b) screening.block(items[i], blocks[i], b, share, sums);
      }
    }
    screening.drain(sums);
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

  static void gathered_bounds(const Form& form, const KeySource& source, const std::int32_t* index, std::int64_t count,
                              float* lower, float* upper) {
    const std::byte* const heads = form.data + gather_heads_at(form);
    if (form.feature_count > kModel) {
      AmxGather<Tiles, true>(form, heads, source).bounds(index, count, lower, upper);
    } else {
      AmxGather<Tiles, false>(form, heads, source).bounds(index, count, lower, upper);
    }
  }

  static void dots(const Form& form, int wanted, const Panel& panel, float* dots) {
    const Blocks blocks = Blocks::of(form);
    if (blocks.count == 0) return;
    const std::byte* rows = form.data + coefficient_bytes(form.relu_rows);
    Buffer buffer;
    typename Tiles::Session session;
    session.use(blocks.rows);
    for (int first = 0; first < wanted; first += blocks.rows) {
      block_products(rows + first * form.head_dim * 2, blocks.rows, panel.data, form.head_dim / 32, nullptr,
                     [](int) {});
      store_block(buffer.dots);
      const int count = wanted - first < blocks.rows ? wanted - first : blocks.rows;
      __builtin_memcpy(dots + first * keys, buffer.dots, sizeof(float) * keys * static_cast<std::size_t>(count));
    }
  }
};

/// The whole table, costs included: what is emulated chooses as the processor's tiles do.
template <class Tiles>
constexpr Kernels amx_table() {
  using Table = AmxKernels<Tiles>;
  Kernels kernels = table_512<Table, PairPacker<TileSink>>(Isa::amx, bf16_arithmetic, Table::screen);
  // Products are so cheap here that all else counts. Certified rows took 0.91 to 1.12 and 1.2 dense ones where
  // screens took 0.44 and 0.50 of the products and 5.7 to 6.5 and 6.9 % of the keys survived
  // (bench/results/amx-emerald-rapids-*.md).
  // Counted, not yet measured: 10 ns a refined key (amx_gather.hpp), where a dense row takes 8 ns for a key.
  kernels.costs = {.refine = 1.4, .key = 0.38};
  kernels.gathered_bounds = Table::gathered_bounds;
  // Packing a key takes as long as three dense rows of it.
  kernels.tile_rows = 32;
  return kernels;
}

}  // namespace
}  // namespace dosa::cpu
