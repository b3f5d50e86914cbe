// The bf16 tile kernels over a small tile interface, so that the same code runs on the processor's tiles
// (kernels_amx.cpp) and on an emulation (kernels_emulated_amx.cpp). Unnamed namespace: see panel_kernels.hpp.
//
// Panel: 64 keys as [D/32][4 blocks of 16 keys][16 pairs of dimensions][16 keys][2] bf16: one tile of the second
// operand is 1 KiB in a row. Which dimensions are a pair is packing's choice (pack_bf16_avx512.hpp): the order is free
// as long as rows use the same. Form: coefficients, then for each block of R <= 16 rows [D/32][R][16 pairs][2] bf16. An
// aggregate row is rounded to bf16. Behind the rows, where none is an aggregate: the heads once more, for keys that are
// gathered (amx_gather.hpp).
#pragma once

#include "cpu/amx_block.hpp"
#include "cpu/amx_gather.hpp"
#include "cpu/amx_narrow.hpp"
#include "cpu/bf16_avx512.hpp"
#include "cpu/intrinsics.hpp"
#include "cpu/keep_avx512.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/pack_bf16_avx512.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/table_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

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

inline void pack_tiles(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
                       const PackSpec& spec, Panel& panel) {
  if (spec.narrow) pack_panel<NarrowPacker>(keys, index, first, count, spec, panel);
  if (spec.wide) pack_panel<PairPacker<TileSink>>(keys, index, first, count, spec, panel);
}

template <class Tiles>
struct AmxKernels {
  using Lanes = Lanes512x4;
  using Narrow = NarrowScreen<Tiles>;
  struct OneLane : Lanes {
    static constexpr int vectors = 1;
  };
  static constexpr int keys = Lanes::panel_keys;
  static constexpr int most_rows = 16;

  static std::size_t code_bytes(int head_dim) { return 2 * keys * static_cast<std::size_t>(head_dim); }
  static std::size_t panel_bytes(int head_dim, ScoreModel model) {
    return rounded_up(panel_bytes_of<keys>(code_bytes(head_dim), head_dim, model)) + narrow_panel_bytes(head_dim);
  }
  static Panel make_panel(std::byte* memory, int head_dim, ScoreModel model) {
    Panel panel = make_panel_of<keys>(memory, code_bytes(head_dim), head_dim, model);
    place_narrow(panel, memory + rounded_up(panel_bytes_of<keys>(code_bytes(head_dim), head_dim, model)));
    return panel;
  }

  static std::size_t narrow_bytes(int head_dim, ScoreModel model) {
    return rounded_up(panel_bytes_of<keys>(0, head_dim, model)) + rounded_up(narrow_panel_bytes(head_dim));
  }
  static Panel make_narrow_panel(std::byte* memory, int head_dim, ScoreModel model) {
    Panel panel = make_panel_of<keys>(memory, 0, head_dim, model);
    panel.data = nullptr;
    place_narrow(panel, memory + rounded_up(panel_bytes_of<keys>(0, head_dim, model)));
    return panel;
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
    const std::size_t wide = coefficient_bytes(rows) +
                             2 * static_cast<std::size_t>((most.stored + most.count) * head_dim) +
                             GatherHeads::bytes(rows, head_dim);
    const std::size_t narrow = Narrow::form_bytes(rows, head_dim);
    return wide > narrow ? wide : narrow;
  }
  /// Where the heads of a form without aggregate rows are for keys that are gathered.
  static std::size_t gather_heads_at(const Form& form) {
    const Blocks blocks = Blocks::of(form);
    return coefficient_bytes(form.relu_rows) + 2 * static_cast<std::size_t>(blocks.count * blocks.rows * form.head_dim);
  }

  static Form make_form(const FormSpec& spec, ScoreModel model, std::byte* memory) {
    const Form form = form_header(spec, model, memory);
    if (form.narrow) {
      Narrow::fill_form(spec, memory);
      return form;
    }
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

  /// What a row's bounds of a panel are for: to be kept where they reach its floor (`row`), or to be written.
  struct Item {
    const Form* form;
    ScreenRow* row;  ///< or nullptr
    float* lower;    ///< [64], or nullptr where the form has aggregate rows
    float* upper;    ///< [64]
  };

  /// A block of rows on its way to its epilogue; never copied: a copy by wide registers of what narrow ones wrote a
  /// moment ago waits until those writes reach the cache, behind all the products in flight.
  struct Pending {
    const Item* item = nullptr;
    const Panel* panel = nullptr;
    std::int32_t base = 0;                // the key of the panel's first lane
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

  using Products = TileBlock<Tiles, false>;

  template <class Meanwhile>
  [[gnu::always_inline]] static void block_products(const std::byte* rows, int row_count, const std::byte* codes,
                                                    int chunks, float* previous, const Meanwhile& meanwhile) {
    const auto chunk_after = [&](int chunk) __attribute__((always_inline)) {
      Products::template chunk<false>(rows + chunk * row_count * 64, codes + chunk * Products::chunk_bytes, nullptr);
      meanwhile(chunk);
    };
    Products::template chunk<true>(rows, codes, reinterpret_cast<std::byte*>(previous));
    meanwhile(0);
    if (chunks == 4) {  // 128 dimensions
      chunk_after(1);
      chunk_after(2);
      chunk_after(3);
      return;
    }
    for (int chunk = 1; chunk < chunks; ++chunk) chunk_after(chunk);
  }

  static void store_block(float* dots) { Products::store(reinterpret_cast<std::byte*>(dots)); }

  [[gnu::always_inline]] static void start(const Form& form, Sums& sums) {
    const __m512 zero = _mm512_setzero_ps(), floor = _mm512_set1_ps(form.aggregate_floor);
    sums = {zero, zero, zero, zero, floor, floor, floor, floor};
  }

  [[gnu::always_inline]] static void finish(const Item& item, const Panel& panel, std::int32_t base, const Sums& sums) {
    if (item.row != nullptr ? !item.row->lower : item.lower == nullptr) {
      finish_as<false>(item, panel, base, sums);
    } else {
      finish_as<true>(item, panel, base, sums);
    }
  }

  template <bool with_lower>
  [[gnu::always_inline]] static void finish_as(const Item& item, const Panel& panel, std::int32_t base,
                                               const Sums& sums) {
    const Form& form = *item.form;
    const __m512 sum[4] = {sums.sum0, sums.sum1, sums.sum2, sums.sum3};
    const __m512 largest[4] = {sums.largest0, sums.largest1, sums.largest2, sums.largest3};
    __m512 allowance[4], most[4], least[4];  // what the scale multiplies
    allowances<Lanes>(form, panel.features, keys, allowance);
    for (int v = 0; v < 4; ++v) {
      most[v] = _mm512_add_ps(with_lower ? sum[v] : _mm512_sub_ps(sum[v], largest[v]), allowance[v]);
      if constexpr (with_lower) least[v] = _mm512_sub_ps(sum[v], allowance[v]);
    }
    if (item.row != nullptr) {
      __m512 upper[4];
      for (int v = 0; v < 4; ++v) upper[v] = Scaled<Lanes>(form, _mm512_loadu_ps(panel.scale + 16 * v), most[v]).up();
      return keep_lanes(*item.row, panel, base, upper, [&](int v, const PassedLanes& passed, float* to) {
        if constexpr (with_lower)
          passed.store(to, Scaled<Lanes>(form, _mm512_loadu_ps(panel.scale + 16 * v), least[v]).down());
      });
    }
    for (int v = 0; v < 4; ++v) {
      const __m512 scale = _mm512_loadu_ps(panel.scale + 16 * v);
      _mm512_storeu_ps(item.upper + 16 * v, Scaled<Lanes>(form, scale, most[v]).up());
      if constexpr (with_lower) _mm512_storeu_ps(item.lower + 16 * v, Scaled<Lanes>(form, scale, least[v]).down());
    }
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

    Screening(int chunks, typename Tiles::Session& session, Memory& memory)
        : pending_(memory.pending), session_(session), chunks_(chunks) {
      for (int i = 0; i < 2; ++i) pending_[i].dots = memory.buffers[i].dots;
    }

    [[gnu::always_inline]] void block(const Item& item, const Panel& panel, std::int32_t base, const Blocks& blocks,
                                      int b, int share, Sums& sums) {
      const Form& form = *item.form;
      const int rows = blocks.rows;
      if (rows != configured_) reconfigure(rows, sums);
      const std::byte* data = form.data + coefficient_bytes(form.relu_rows) + b * rows * form.head_dim * 2;
      const Pending& waits = stored();
      begin(waits, sums);
      if (chunks_ == 4 && rows == most_rows && waits.relu_rows == most_rows && waits.item->row != nullptr &&
          waits.item->row->lower) {
        interleaved(data, panel.data, in_tiles().dots, waits, sums);
      } else {
        block_products(
            data, rows, panel.data, chunks_,
            in_tiles().dots, [&](int chunk) __attribute__((always_inline)) { advance(waits, chunk, sums); });
        end(waits, sums);
      }
      const int first = b * rows, relu_left = form.relu_rows - first, stored_left = blocks.stored - first;
      Pending& fresh = next();
      fresh.item = &item;
      fresh.panel = &panel;
      fresh.base = base;
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
    /// Dense rows of 128 dimensions, full blocks of relu rows: a piece of the epilogue after each product. The
    /// scheduler holds about a hundred waiting operations: behind an epilogue in one piece, the next products would not
    /// be seen in time. None under the first chunk, when the block before is stored: a load waits for any store on its
    /// way whose address has the same lowest twelve bits.
    [[gnu::always_inline]] static void interleaved(const std::byte* data, const std::byte* key, float* previous,
                                                   const Pending& waits, Sums& sums) {
      auto* const store_to = reinterpret_cast<std::byte*>(previous);
      const auto chunk = [&]<int c>(const auto& after) __attribute__((always_inline)) {
        Products::load_rows(data + c * most_rows * 64);
        Products::template product<0, c == 0>(key + c * Products::chunk_bytes, store_to);
        after.template operator()<4 * c>();
        Products::template product<1, c == 0>(key + c * Products::chunk_bytes, store_to);
        after.template operator()<4 * c + 1>();
        Products::template product<2, c == 0>(key + c * Products::chunk_bytes, store_to);
        after.template operator()<4 * c + 2>();
        Products::template product<3, c == 0>(key + c * Products::chunk_bytes, store_to);
        after.template operator()<4 * c + 3>();
      };
      const auto two_rows = [&]<int i>() __attribute__((always_inline)) {
        constexpr int r = 2 * (i - 4);
        add_relu_row(waits.coefficients[r], waits.dots + r * keys, sums);
        add_relu_row(waits.coefficients[r + 1], waits.dots + (r + 1) * keys, sums);
      };
      const auto nothing = []<int>() {};
      chunk.template operator()<0>(nothing);
      chunk.template operator()<1>(two_rows);
      chunk.template operator()<2>(two_rows);
      if (!waits.closes) return chunk.template operator()<3>(nothing);
      const Form& form = *waits.item->form;
      const Panel& panel = *waits.panel;
      __m512 upper[4], least[4];
      const auto bounds_of_16 = [&]<int i>() __attribute__((always_inline)) {
        constexpr int v = i - 12;
        const __m512 sum = v == 0 ? sums.sum0 : v == 1 ? sums.sum1 : v == 2 ? sums.sum2 : sums.sum3;
        __m512 allowance;
        allowances<OneLane>(form, panel.features + 16 * v, keys, &allowance);
        upper[v] = Scaled<Lanes>(form, _mm512_loadu_ps(panel.scale + 16 * v), _mm512_add_ps(sum, allowance)).up();
        least[v] = _mm512_sub_ps(sum, allowance);
      };
      chunk.template operator()<3>(bounds_of_16);
      keep_lanes(*waits.item->row, panel, waits.base, upper, [&](int v, const PassedLanes& passed, float* to) {
        passed.store(to, Scaled<Lanes>(form, _mm512_loadu_ps(panel.scale + 16 * v), least[v]).down());
      });
    }

    [[gnu::always_inline]] static void begin(const Pending& pending, Sums& sums) {
      if (pending.opens) start(*pending.item->form, sums);
    }
    [[gnu::always_inline]] void end(const Pending& pending, const Sums& sums) const {
      if (pending.closes) finish(*pending.item, *pending.panel, pending.base, sums);
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

    Pending* const pending_;
    typename Tiles::Session& session_;
    int turn_ = 0, chunks_, configured_ = 0;
  };

  /// Panels that follow one another, the first of which begins with key `base`.
  struct Run {
    const Panel* panels;
    int count;
    std::int32_t base;
  };

  static constexpr int most_items = 32;  // screened at a time

  /// Wide forms in order of their block size, so that the tiles are configured once a size: a product takes as many
  /// cycles as the first operand has rows, and a configuration as long as several products.
  static void screen_wide(const Item* items, int count, const Run& run, typename Tiles::Session& session) {
    Blocks blocks[most_items];
    unsigned sizes = 0;
    for (int i = 0; i < count; ++i) {
      blocks[i] = Blocks::of(*items[i].form);
      sizes |= 1U << static_cast<unsigned>(blocks[i].rows);
    }
    const int chunks = run.panels->head_dim / 32;
    Sums sums{};
    typename Screening::Memory memory;
    Screening screening(chunks, session, memory);
    for (int rows = 0; rows <= most_rows; ++rows) {
      if ((sizes >> static_cast<unsigned>(rows) & 1U) == 0) continue;
      const int share = (rows + chunks - 1) / chunks;
      for (int i = 0; i < count; ++i) {
        if (blocks[i].rows != rows) continue;
        if (i + 1 < count && items[i + 1].row != nullptr) fetch_lists(*items[i + 1].row);
        std::int32_t base = run.base;
        for (int p = 0; p < run.count; ++p, base += keys) {
          const Panel& panel = run.panels[p];
          if (items[i].row != nullptr && SeenLanes(*items[i].row, base, panel.count).none()) continue;
          if (rows == 0) {
            start(*items[i].form, sums);
            finish(items[i], panel, base, sums);
          }
          for (int b = 0; b < blocks[i].count; ++b) screening.block(items[i], panel, base, blocks[i], b, share, sums);
        }
      }
    }
    screening.drain(sums);
  }

  static void screen(ScreenRow* rows, int count, const Panel* panels, int panel_count, std::int32_t base) {
    const Run run{panels, panel_count, base};
    typename Tiles::Session session;
    for (; count > 0; rows += most_items, count -= most_items) {
      const int some = count < most_items ? count : most_items;
      Item wide[most_items];
      ScreenRow* narrow[most_items];
      int wide_count = 0, narrow_count = 0;
      for (ScreenRow* row = rows; row != rows + some; ++row) {
        if (row->form->narrow) {
          narrow[narrow_count++] = row;
        } else {
          wide[wide_count++] = {row->form, row, nullptr, nullptr};
        }
      }
      if (narrow_count > 0) Narrow::screen(narrow, narrow_count, panels, panel_count, base, session);
      if (wide_count > 0) screen_wide(wide, wide_count, run, session);
    }
  }

  static void screen_one(const Item& item, const Panel& panel) {
    typename Tiles::Session session;
    screen_wide(&item, 1, {&panel, 1, 0}, session);
  }

  // NOLINTBEGIN(readability-non-const-parameter): written through the item
  static void upper(const Form& form, const Panel& panel, float* upper) {
    if (form.narrow) return Narrow::bounds(form, panel, nullptr, upper);
    screen_one({&form, nullptr, nullptr, upper}, panel);
  }

  static void bounds(const Form& form, const Panel& panel, float* lower, float* upper) {
    if (form.narrow) return Narrow::bounds(form, panel, lower, upper);
    screen_one({&form, nullptr, lower, upper}, panel);
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
  kernels.pack = pack_tiles;
  // Measured on Emerald Rapids, 64K-key traces, H = 32, beside 6.3 to 6.9 ns that a dense row of integers takes for a
  // key: 1.9 to 2.2 ns a block of 16 narrow rows in the kernel, 19 to 21 ns a refined key in the kernel. Chosen to fit
  // whole runs of four traces (bench/results/amx-emerald-rapids-*.md).
  kernels.costs = {.refine = 4, .key = 0.38, .row = 4600, .narrow = {.block_rows = 16, .block = 0.24}};
  kernels.gathered_bounds = Table::gathered_bounds;
  // Packing a key takes as long as three dense rows of it.
  kernels.tile_rows = 32;
  // Each row's form, windows and lists come from the second-level cache once a screen; four panels of bytes take 32 of
  // the first-level cache's 48 KiB. Two panels of bf16 take as much, and were no faster than one.
  kernels.narrow_panels = 4;
  kernels.narrow_panel_bytes = Table::narrow_bytes;
  kernels.make_narrow_panel = Table::make_narrow_panel;
  return kernels;
}

}  // namespace
}  // namespace dosa::cpu
