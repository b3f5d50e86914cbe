// Bounds of keys that lie here and there, by tiles, without transposing them: 16 keys are the first operand, one a row
// as it lies in memory, and 16 heads the second. (A panel makes keys the second operand: each is then transposed once
// and multiplied by many rows; one row's few keys do not pay for that.)
//
// The order of dimensions is free as long as keys and heads agree on it. 64 codes, read as 32 words of 16 bits, are two
// steps of 32: the lower bytes (even dimensions), then the upper ones (odd). The last 32 dimensions of an odd multiple
// are one step: their even dimensions, then their odd ones.
//
// Heads, in the form's memory behind its rows: coefficients [heads], then [D/32 steps][blocks of 16 heads][16 pairs of
// dimensions][16 heads][2] bf16; zero heads with coefficient zero fill the last block.
//
// Blocks of 32 keys run through three stages: codes become bf16, tiles multiply, sums and norms become bounds. At any
// time three blocks are under way, one a stage, and their work alternates four keys at a time, so that tiles and vector
// units are busy together. What a stage stores is loaded when the next block has passed: tiles neither store nor load
// through the store buffer. Unnamed namespace: see panel_kernels.hpp.
#pragma once

#include "cpu/intrinsics.hpp"
#include "cpu/key_sources.hpp"
#include "cpu/lanes_avx512.hpp"
#include "cpu/pack_avx512.hpp"
#include "cpu/pack_bf16_avx512.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/transpose_avx512.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

struct Lanes512x1 : Lanes512 {
  static constexpr int vectors = 1, panel_keys = 16;
};

/// The heads of a form without aggregate rows as a second operand.
struct GatherHeads {
  static constexpr int block_heads = 16, tile_bytes = 1024;

  static int blocks(int heads) { return (heads + block_heads - 1) / block_heads; }
  static std::size_t bytes(int heads, int head_dim) {
    return static_cast<std::size_t>(blocks(heads)) * block_heads *
           (sizeof(float) + 2 * static_cast<std::size_t>(head_dim));
  }

  /// row_at(head, chunk): the row's 16 pairs of a chunk of 32 dimensions, in the order of row_pairs.
  template <class RowAt>
  static void make(const FormSpec& spec, std::byte* memory, const RowAt& row_at) {
    const int count = blocks(spec.relu_rows);
    auto* const coefficients = reinterpret_cast<float*>(memory);
    for (int h = 0; h < block_heads * count; ++h) coefficients[h] = h < spec.relu_rows ? spec.coef[h] : 0.0F;
    std::byte* const tiles = memory + sizeof(float) * block_heads * static_cast<std::size_t>(count);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i even_then_odd = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (int block = 0; block < count; ++block) {
      const auto put = [&](int step, const __m512i& order, int chunk, int next_chunk) {
        __m512i row[block_heads];
        for (int i = 0; i < block_heads; ++i) {
          const int head = block_heads * block + i;
          row[i] = head >= spec.relu_rows ? _mm512_setzero_si512()
                                          : _mm512_permutex2var_epi32(_mm512_loadu_si512(row_at(head, chunk)), order,
                                                                      _mm512_loadu_si512(row_at(head, next_chunk)));
        }
        transpose_words(row);
        std::byte* const tile = tiles + (step * count + block) * tile_bytes;
        for (int pair = 0; pair < 16; ++pair) _mm512_storeu_si512(tile + 64 * pair, row[pair]);
      };
      const int chunks = spec.head_dim / 32;
      for (int chunk = 0; chunk + 1 < chunks; chunk += 2) {
        put(chunk, even, chunk, chunk + 1);
        put(chunk + 1, odd, chunk, chunk + 1);
      }
      if (chunks % 2 != 0) put(chunks - 1, even_then_odd, chunks - 1, chunks - 1);
    }
  }
};

template <class Tiles, bool with_model>
class AmxGather {
 public:
  /// heads: made by GatherHeads.
  AmxGather(const Form& form, const std::byte* heads, const KeySource& keys)
      : form_(form),
        keys_(keys),
        head_blocks_(GatherHeads::blocks(form.relu_rows)),
        steps_(form.head_dim / 32),
        coefficients_(reinterpret_cast<const float*>(heads)),
        tiles_(heads + sizeof(float) * GatherHeads::block_heads * static_cast<std::size_t>(head_blocks_)) {}

  void bounds(const std::int32_t* index, std::int64_t count, float* lower, float* upper) {
    const std::int64_t blocks = (count + block_keys - 1) / block_keys;
    const Gathered gathered{index, count};
    for (std::int64_t first = 0; first < ahead * block_keys && first < count; first += 4) fetch(gathered, first);
    session_.use(16);
    for (std::int64_t block = 0; block < blocks + 2; ++block) {
      const bool decodes = block < blocks, multiplies = block >= 1 && block <= blocks, ends = block >= 2;
      for (int four = 0; four < fours; ++four) {
        if (decodes) decode(gathered, block * block_keys + 4 * four, codes_[block & 1], facts_[block & 3], four);
        if (multiplies) multiply(codes_[(block - 1) & 1], dots_[(block - 1) & 1], four);
        if (ends) {
          sums_[four % 4] = weighted_sums(dots_[block & 1] + 4 * four * row_floats());
          if (four % 4 == 3) {
            const std::int64_t first = (block - 2) * block_keys + 4 * (four - 3);
            if (first < count) finish(facts_[(block - 2) & 3], four - 3, count - first, lower + first, upper + first);
          }
        }
      }
    }
  }

 private:
  static constexpr int block_keys = 32, fours = block_keys / 4;
  /// Blocks from a key's fetch to its use: about a microsecond, several times the latency of the third-level cache.
  static constexpr std::int64_t ahead = 4;
  static constexpr int most_steps = 8, most_heads = 128;
  static constexpr int step_bytes = block_keys * 64;  ///< two tiles of the first operand

  struct Gathered {
    const std::int32_t* index;
    std::int64_t count;
  };

  /// What is known of a block's keys beside their codes; four keys a vector, as join_four leaves them. A part is 64
  /// dimensions (the last may be 32).
  struct Facts {
    alignas(64) float scale[block_keys];
    __m512 squares[with_model ? most_steps / 2 : 1][fours];  ///< of a part; without a model of all
    __m512 largest[with_model ? most_steps / 2 : 1][fours];  ///< magnitudes of codes; only with a model
  };

  /// Behind the last key comes the last key again: nothing else depends on how many there are.
  [[nodiscard, gnu::always_inline]] KeyAddress locate(const Gathered& gathered, std::int64_t i) const {
    return keys_.locate(gathered.index[i < gathered.count ? i : gathered.count - 1]);
  }

  /// Starts fetching four keys into the second-level cache, which is near enough for loads out of order.
  [[gnu::always_inline]] void fetch(const Gathered& gathered, std::int64_t first) const {
    constexpr int kSecondLevel = 2, kLine = 64;
    for (int k = 0; k < 4; ++k) {
      const KeyAddress at = locate(gathered, first + k);
      if (at.codes == nullptr) continue;
      __builtin_prefetch(at.scale, 0, kSecondLevel);
      for (int byte = 0; byte < form_.head_dim; byte += kLine) __builtin_prefetch(at.codes + byte, 0, kSecondLevel);
    }
  }

  /// Not inlined: its addresses would crowd out what the other stages keep in registers.
  [[gnu::noinline]] void decode(const Gathered& gathered, std::int64_t first, std::byte* codes, Facts& facts,
                                int four) const {
    fetch(gathered, first + ahead * block_keys);
    float* const scale = facts.scale + 4 * four;
    const std::uint8_t* from[4];
    for (int k = 0; k < 4; ++k) {
      const KeyAddress at = locate(gathered, first + k);
      const float none = __builtin_nanf("");
      from[k] = at.codes == nullptr ? kNoCodes : at.codes;
      __builtin_memcpy(scale + k, at.codes == nullptr ? &none : at.scale, sizeof(float));
    }
    std::byte* const to = codes + 4 * four * 64;
    __m512 squares[4] = {};
    __m512i part[4];
    int step = 0;
    for (; step + 1 < steps_; step += 2) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) part[k] = _mm512_loadu_si512(from[k] + 32 * step);
      decode_part<false>(part, to + step * step_bytes, squares, scale);
      note_part(part, squares, facts, step / 2, four);
    }
    if (step < steps_) {  // both halves alike: of one the even codes are taken, of the other the odd ones
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        part[k] = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[k] + 32 * step)));
      decode_part<true>(part, to + step * step_bytes, squares, scale);
      note_part(part, squares, facts, step / 2, four);
    }
    if constexpr (!with_model) facts.squares[0][four] = join_four<SumOfWords>(squares);
  }

  /// Four keys' codes to bf16. Of 10^4 codes in the recorded traces one is a zero or subnormal; they and NaN codes take
  /// a way of their own for all four keys.
  template <bool last>
  [[gnu::always_inline]] static void decode_part(const __m512i (&codes)[4], std::byte* to, __m512 (&squares)[4],
                                                 float* scale) {
    // Twice a code has lost its sign; less 16, all that are no normal numbers (below 8; 127) come out above the others.
    constexpr char kLargestNormal = static_cast<char>(2 * 0x7e - 16);
    const auto turned = [](__m512i c) __attribute__((always_inline)) {
      return _mm512_add_epi8(_mm512_add_epi8(c, c), _mm512_set1_epi8(-16));
    };
    const __m512i most = _mm512_max_epu8(_mm512_max_epu8(turned(codes[0]), turned(codes[1])),
                                         _mm512_max_epu8(turned(codes[2]), turned(codes[3])));
    if (_mm512_cmpgt_epu8_mask(most, _mm512_set1_epi8(kLargestNormal)) == 0) {
      to_bf16<last, false>(codes, to, squares);
    } else {
      to_bf16<last, true>(codes, to, squares);
      for (int k = 0; k < 4; ++k) {
        const __m512i magnitude = _mm512_and_si512(codes[k], _mm512_set1_epi8(0x7f));
        if (_mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7f)) != 0) scale[k] = __builtin_nanf("");
      }
    }
  }

  template <bool last, bool subnormal>
  [[gnu::always_inline]] static void to_bf16(const __m512i (&codes)[4], std::byte* to, __m512 (&squares)[4]) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const auto put = [&](int step, __m512i words) __attribute__((always_inline)) {
        const __m512i pairs = bf16_of_codes<subnormal>(words);
        _mm512_store_si512(to + step * step_bytes + 64 * k, pairs);
        // With the first number of the pair as its last bits the second one is less than 2^-7 of itself further from
        // zero: its square is no smaller. (Zeros need their bits cleared: subnormal F32 numbers take an assist.)
        const __m512 high = subnormal ? high_of(pairs) : _mm512_castsi512_ps(pairs), low = low_of(pairs);
        squares[k] = _mm512_fmadd_ps(high, high, squares[k]);
        squares[k] = _mm512_fmadd_ps(low, low, squares[k]);
      };
      if constexpr (last) {
        put(0, _mm512_mask_slli_epi16(codes[k], 0x0000ffffU, codes[k], 8));
      } else {
        put(0, _mm512_slli_epi16(codes[k], 8));
        put(1, codes[k]);
      }
    }
  }

  [[gnu::always_inline]] static void note_part(const __m512i (&codes)[4], __m512 (&squares)[4], Facts& facts, int part,
                                               int four) {
    if constexpr (with_model) {
      facts.squares[part][four] = join_four<SumOfWords>(squares);
      __m512 magnitude[4];
      for (int k = 0; k < 4; ++k) {
        squares[k] = _mm512_setzero_ps();
        magnitude[k] = _mm512_castsi512_ps(_mm512_and_si512(codes[k], _mm512_set1_epi8(0x7f)));
      }
      facts.largest[part][four] = join_four<LargestBytes>(magnitude);
    }
  }

  /// Floats from key to key in a block's dot products.
  [[nodiscard]] int row_floats() const { return GatherHeads::block_heads * head_blocks_; }

  /// The products that run beside the decoding of four keys of the next block. The first four keys and the last ones
  /// get none: of what was stored last, and of what is loaded next.
  [[gnu::always_inline]] void multiply(const std::byte* codes, float* dots, int four) const {
    constexpr int kSpread = fours - 3;
    const int all = (head_blocks_ + 1) / 2 * steps_;
    if (four == kSpread + 1) return store_heads(dots, (head_blocks_ - 1) / 2 * 2);
    if (four < 1 || four > kSpread) return;
    const int from = (all * (four - 1) + kSpread - 1) / kSpread, to = (all * four + kSpread - 1) / kSpread;
    for (int i = from; i < to; ++i) {
      const int block = i / steps_ * 2, step = i % steps_;
      if (step == 0) {
        if (block > 0) store_heads(dots, block - 2);
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
        Tiles::template zero<3>();
      }
      products(codes + step * step_bytes, tiles_ + (step * head_blocks_ + block) * GatherHeads::tile_bytes,
               block + 1 < head_blocks_);
    }
  }

  /// One step of 32 keys (tiles 4 and 5) and up to 32 heads (6 and 7); accumulators 0-3.
  [[gnu::always_inline]] static void products(const std::byte* codes, const std::byte* heads, bool two_blocks) {
    Tiles::template load<4>(codes, 64);
    Tiles::template load<6>(heads, 64);
    Tiles::template multiply_add<0, 4, 6>();
    Tiles::template load<5>(codes + 1024, 64);
    Tiles::template multiply_add<2, 5, 6>();
    if (!two_blocks) return;
    Tiles::template load<7>(heads + GatherHeads::tile_bytes, 64);
    Tiles::template multiply_add<1, 4, 7>();
    Tiles::template multiply_add<3, 5, 7>();
  }

  [[gnu::always_inline]] void store_heads(float* dots, int block) const {
    if (block >= head_blocks_) return;  // there are no heads
    const auto stride = static_cast<std::size_t>(row_floats()) * sizeof(float);
    float* const first = dots + GatherHeads::block_heads * block;
    float* const second = first + 16 * row_floats();
    Tiles::template store<0>(first, stride);
    Tiles::template store<2>(second, stride);
    if (block + 1 >= head_blocks_) return;
    Tiles::template store<1>(first + 16, stride);
    Tiles::template store<3>(second + 16, stride);
  }

  /// Of four keys, as join_four leaves them.
  [[gnu::always_inline]] __m512 weighted_sums(const float* dots) const {
    __m512 sum[4] = {};
    for (int block = 0; block < head_blocks_; ++block, dots += 16) {
      const __m512 coefficient = _mm512_loadu_ps(coefficients_ + 16 * block);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        sum[k] = _mm512_fmadd_ps(coefficient, Lanes512::relu(_mm512_load_ps(dots + k * row_floats())), sum[k]);
    }
    return join_four<SumOfWords>(sum);
  }

  /// NaN for those that no bound may speak of, as find_lanes says.
  [[gnu::always_inline]] static __m512 bounded_scale(__m512 scale) {
    const __mmask16 positive = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GE_OQ);
    const __mmask16 within = _mm512_mask_cmp_ps_mask(positive, scale, _mm512_set1_ps(__FLT_MAX__), _CMP_LE_OQ);
    return _mm512_mask_blend_ps(within, _mm512_set1_ps(__builtin_nanf("")), scale);
  }

  /// Bounds of 16 keys from `four` on, of which `left` exist.
  [[gnu::always_inline]] void finish(const Facts& facts, int four, std::int64_t left, float* lower,
                                     float* upper) const {
    const Halves halves = join_sixteen<SumOfWords>(sums_);
    const __m512 sum = _mm512_add_ps(halves.first, halves.second);
    alignas(64) float features[16 * kMaxFeatures];
    set_features(facts, four, features);
    __m512 allowance[1];
    allowances<Lanes512x1>(form_, features, 16, allowance);
    const __m512 scale = bounded_scale(_mm512_load_ps(facts.scale + 4 * four));
    const auto there = static_cast<__mmask16>(_bzhi_u64(0xffffU, static_cast<unsigned>(left < 16 ? left : 16)));
    _mm512_mask_storeu_ps(upper, there, Scaled<Lanes512x1>(form_, scale, _mm512_add_ps(sum, allowance[0])).up());
    _mm512_mask_storeu_ps(lower, there, Scaled<Lanes512x1>(form_, scale, _mm512_sub_ps(sum, allowance[0])).down());
  }

  /// [feature][16]. Each square takes part in at most D / 16 + 4 + D / 32 sums, its own included: less than the D + 3
  /// of root_upward.
  [[gnu::always_inline]] void set_features(const Facts& facts, int four, float* features) const {
    const auto root = [&](__m512 sum) { return root_upward(sum, form_.head_dim, 0.0F); };
    __m512 sum = _mm512_setzero_ps();
    if constexpr (with_model) {
      float* to = features + 16 * kModel;
      const auto chunk = [&](__m512 largest, __m512 squares) {
        _mm512_store_ps(to, power_of_magnitudes(largest_of_four(_mm512_castps_si512(largest))));
        _mm512_store_ps(to + 16, root(sum));
        sum = _mm512_add_ps(sum, squares);
        to += 32;
      };
      for (int step = 0; step < steps_; step += 2) {
        const Halves squares = join_sixteen<SumOfWords>(facts.squares[step / 2] + four);
        const Halves largest = join_sixteen<LargestBytes>(facts.largest[step / 2] + four);
        if (step + 1 < steps_) {
          chunk(largest.first, squares.first);
          chunk(largest.second, squares.second);
        } else {
          chunk(largest.first, _mm512_add_ps(squares.first, squares.second));
        }
      }
    } else {
      const Halves squares = join_sixteen<SumOfWords>(facts.squares[0] + four);
      sum = _mm512_add_ps(squares.first, squares.second);
    }
    const __m512 norm = root(sum);
    _mm512_store_ps(features + 16 * kNorm, norm);
    _mm512_store_ps(features + 16 * kCentred, norm);
  }

  const Form& form_;
  const KeySource keys_;
  const int head_blocks_, steps_;
  const float* const coefficients_;
  const std::byte* const tiles_;
  typename Tiles::Session session_;
  alignas(64) std::byte codes_[2][most_steps * step_bytes];
  alignas(64) float dots_[2][block_keys * most_heads];  ///< [key][heads]
  Facts facts_[4];
  __m512 sums_[4];
};

}  // namespace
}  // namespace dosa::cpu
