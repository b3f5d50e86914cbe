// What an instruction set provides to the CPU backend: one table of functions, one file an instruction set.
//
// A *panel* is a block of up to `panel_keys` keys in the instruction set's own layout, with what every bound needs
// about each key (scale, features). A *form* is one query row as a set of linear rows with an epilogue:
//   S(k)  = sum over relu rows j of coef[j] * relu(row_j . k)  -  max(aggregate_floor, max over aggregate rows a of
//   row_a . k) A(k)  = constant + min(alt_norm * norm, alt_mean + alt_centred * centred) + sum over features f of
//   allow[f] * feature[f] upper = up( scale * (S + A) ),   lower = down( scale * (S - A) )     (lower only without
//   aggregate rows) up(x) = x + (|x| * 2^-21 + 2^-145), down(x) = x - (|x| * 2^-21 + 2^-145): covers the last
//   operations and the model's own last rounding at the subnormal end.
// A *narrow* form has rows of integers of a byte and is screened against keys of the same: dots are exact integers
// then, and A(k) has allow_residual * residual for what the integers leave of a key (T11 of docs/certificate.md). All
// other numeric slack is part of constant and allow[]: certificate/ computes it from `Arithmetic`. The functions add
// nothing else, but a key whose scale is negative, NaN or infinite, or that holds a NaN code, gets upper = +inf and
// lower = -inf (it is scored under the model), and so does every key of a form whose arithmetic overflows: the result
// of `upper` is never NaN and never too small.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/key_source.hpp"
#include "dosa/types.hpp"
#include "score/score.hpp"

namespace dosa::cpu {

/// Query-independent numbers of a key, all F32, all rounded up (upper bounds of the real value).
enum Feature : int {
  kNorm = 0,     ///< |k| of the unscaled code vector
  kCentred = 1,  ///< |k - mean| where the pack was given a mean; else a copy of |k|
  kModel = 2,    ///< sm90 only: for chunk s = 0..D/32-1: feature[kModel + 2 s] = largest 2^e_b over the chunk's nonzero
               ///< codes (0 if none; e_b unnormalised: subnormal codes count as 2^-6), feature[kModel + 2 s + 1] = |k|
               ///< over the chunks before s (0 for s = 0)
};
inline constexpr int kMaxFeatures = kModel + 2 * 8;
[[nodiscard]] constexpr int feature_count(ScoreModel model, int head_dim) noexcept {
  return model == ScoreModel::f64 ? kModel : kModel + 2 * (head_dim / 32);
}

/// What the pack makes of the keys besides scales and features; one of the two where the panel has room for one.
struct PackSpec {
  ScoreModel model = ScoreModel::f64;
  const float* mean = nullptr;  ///< [D] or nullptr; only with `wide`
  bool wide = true;             ///< the codes, as forms other than narrow ones need them
  bool narrow = false;  ///< integers of a byte, as narrow forms need them; without `wide`, norms are larger by up
                        ///< to a hundredth
};

/// Memory is the caller's: `panel_bytes(D, model)` bytes, 64-byte aligned; a panel is a plain header over it.
struct Panel {
  std::byte* data = nullptr;  ///< the instruction set's layout of the codes
  float* scale = nullptr;     ///< [panel_keys]
  float* features = nullptr;  ///< [feature_count][panel_keys]
  std::byte* narrow =
      nullptr;                ///< the instruction set's layout of the integers k_ of k = step k_ + rest; nullptr: none
  float* step = nullptr;      ///< [panel_keys]: powers of two
  float* residual = nullptr;  ///< [panel_keys]: |rest|, rounded up
  std::int32_t head_dim = 0;
  std::int32_t feature_count = 0;
  std::int32_t count = 0;  ///< keys present; lanes past it hold zero codes, scale 0, features 0
};

/// One query row as linear rows, before the instruction set's layout.
struct FormSpec {
  int head_dim = 0;
  int relu_rows = 0;            ///< 0..128
  int aggregate_rows = 0;       ///< 0..4
  const float* rows = nullptr;  ///< [relu_rows + aggregate_rows][head_dim]; relu rows are exact E4M3 values (or 0)
  const float* coef = nullptr;  ///< [relu_rows]
  float constant = 0;
  float allow[kMaxFeatures] = {};
  /// A key whose scale is not in [0, scale_limit] gets upper = +inf and lower = -inf: beyond it the served sum may
  /// overflow where the real one does not (sm90: partial sums are scaled before they are added).
  float scale_limit = 3.40282347e38F;
  float aggregate_floor = 0;     ///< 0, or -inf for the absolute-value form (only with aggregate rows)
  bool has_alternative = false;  ///< the min(...) term of A(k)
  float alt_norm = 0, alt_mean = 0, alt_centred = 0;
  /// A narrow form (T11): [relu_rows + 2 aggregate_rows][head_dim] integers, two rows an aggregate (its row is factor
  /// times 128 high + low); `rows` and `coef` are not read then. nullptr: not narrow.
  const std::int8_t* narrow = nullptr;
  const float* narrow_factor = nullptr;  ///< [relu_rows + aggregate_rows], coefficients included
  float allow_residual = 0;              ///< of A(k), times the key's residual
};

/// Memory is the caller's: `form_bytes(rows, D)` bytes, 64-byte aligned.
struct Form {
  std::byte* data = nullptr;
  int head_dim = 0, relu_rows = 0, aggregate_rows = 0, feature_count = 0;
  float constant = 0;
  float allow[kMaxFeatures] = {};
  float scale_limit = 3.40282347e38F;
  float aggregate_floor = 0;
  bool has_alternative = false;
  float alt_norm = 0, alt_mean = 0, alt_centred = 0;
  bool narrow = false;
  float allow_residual = 0;
};

/// What the certificate must know of the instruction set's arithmetic; every number is a proven upper bound.
struct Arithmetic {
  double dot_error;  ///< |computed row.k - stored row.k| <= dot_error * sum |row_d k_d|, D included
  double
      row_error;  ///< |stored row - given row|_d <= row_error * |given row_d| for aggregate rows (0 where F32 is kept)
  double epilogue_error;  ///< relative error per operation of the epilogue (2^-23 covers every rounding mode)
};

/// Narrow forms: rows come in blocks, and a block that is not full costs as much as a full one.
struct NarrowCosts {
  int block_rows = 0;  ///< 0: the instruction set has no narrow forms
  double block = 0;    ///< screening a key with one block, in units of scoring one key of a row dense
};

/// What the cost model must know of the instruction set, in units of scoring one key of a row dense (measured by
/// `dosa bench` over the 64K-key traces; they steer the choice of r and path, never the result).
struct Costs {
  double refine = 1.8;  ///< one survivor: gathered pack, bounds, thresholds
  double key = 0.035;   ///< a screened key beside its rows: share of the pack, passes over its bounds
  double row = 0;       ///< a certified row beside its keys: sample, choice, form
  NarrowCosts narrow{};
};

/// Keys with their proven bounds, array by array.
struct Candidates {
  std::int32_t* key;
  float* lower;
  float* upper;
};

/// A row on its way through the panels of a screen: what it keeps are the keys that it sees whose upper bound is not
/// below its floor, in order.
struct ScreenRow {
  const Form* form;
  float floor;
  std::int32_t first, last;  ///< the keys that it sees
  bool lower;                ///< lower bounds are kept, too; only without aggregate rows
  Candidates to;
  std::int64_t count = 0;  ///< kept so far
  /// Of what the next call will read, this row's share to be fetched into the second-level cache; a kernel need not.
  const std::byte* ahead = nullptr;
  std::int64_t ahead_bytes = 0;
};

/// A sample's bounds, key by key, on their way to an expected share of survivors.
struct SampledBounds {
  const float* bound;
  const float* threshold;  ///< to be compared with bound - aggregate
  const float* inverse;    ///< 1 / (width of the band about the threshold in which a key counts as partly alive)
};

/// Loops over a row's numbers. read_head and exact_dot are exact, joint_square is what it says; the others run over
/// sampled keys and only choose what is computed. head_dim and dim: multiples of 32; count: any.
struct RowLoops {
  /// Decodes codes[0..head_dim); absolute = sum of |value|, square = sum of value^2. True where a code is NaN: the
  /// numbers are unspecified then.
  bool (*read_head)(const std::uint8_t* codes, int head_dim, float* values, double* absolute, double* square);
  /// Of E4M3 values, `dim` of 32..256: every partial sum is a multiple of 2^-18 below 2^26, so binary64 holds it.
  double (*exact_dot)(const float* a, const float* b, int dim);
  void (*add_relu)(float* out, const float* dots, float factor, int count);  ///< out += factor * relu(dots)
  void (*add)(float* out, const float* dots, float factor, int count);       ///< out += factor * dots
  float (*weighted_sum)(const float* values, const float* weights, int count);
  /// Sum over keys of (bound - aggregate - threshold) * inverse + 1/2 clamped to 0..1; a NaN or a tie counts 1: a bound
  /// that equals the threshold survives, and so do all of a plateau; a NaN is a key without a bound.
  float (*survivors)(const SampledBounds& keys, const float* aggregate, int count);
  /// Sum over j, l of |w_j w_l v_j . v_l| for vectors [count][dim] of multiples of 2^-9 below 2^9, each dot product up
  /// to 2^-15 |v_j| |v_l| away from it.
  double (*joint_square)(const float* vectors, const float* weights, int count, int dim);
};

struct Kernels {
  Isa isa;
  int panel_keys;  ///< a multiple of 16, at most 64

  Arithmetic (*arithmetic)(int head_dim);
  std::size_t (*panel_bytes)(int head_dim, ScoreModel model);
  std::size_t (*form_bytes)(int rows, int head_dim);
  Panel (*make_panel)(std::byte* memory, int head_dim, ScoreModel model);

  /// Packs keys first .. first+count-1, or index[0..count-1] where index is not null. Invalid physical pages become
  /// keys whose scale is NaN (the caller knows by KeySource::locate that they are not selectable).
  void (*pack)(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, const PackSpec& spec,
               Panel& panel);
  Form (*make_form)(const FormSpec& spec, ScoreModel model, std::byte* memory);

  /// upper[panel_keys] (lanes past count: unspecified).
  void (*upper)(const Form& form, const Panel& panel, float* upper);
  /// lower and upper [panel_keys]; aggregate_rows must be 0.
  void (*bounds)(const Form& form, const Panel& panel, float* lower, float* upper);
  /// The same for many rows and up to kMostPanels panels that follow one another (all but the last are full), the first
  /// of which begins with key `base`: each row keeps what reaches its floor. AMX configures its tiles once a call and
  /// hides each row's epilogue under the products of the next.
  void (*screen)(ScreenRow* rows, int count, const Panel* panels, int panel_count, std::int32_t base);
  /// dots[row * panel_keys + key] of the first `rows` rows of the form.
  void (*dots)(const Form& form, int rows, const Panel& panel, float* dots);

  /// Scores under the model, bit for bit, of keys index[0..count-1] (or first.. where null); invalid pages give NaN.
  /// `memory`: model_bytes(heads, D) bytes, filled once for a row by model_row, then used by model_scores.
  std::size_t (*model_bytes)(ScoreModel model, int heads, int head_dim);
  void (*model_row)(ScoreModel model, const ScoreRow& row, std::byte* memory);
  void (*model_scores)(ScoreModel model, const ScoreRow& row, const std::byte* memory, const KeySource& keys,
                       const std::int32_t* index, std::int64_t first, std::int64_t count, float* scores);

  /// Number of values with !(v < threshold).
  std::int64_t (*count_not_below)(const float* values, std::int64_t count, float threshold);
  /// Appends i for every i with !(upper[i] < low) and !(lower[i] >= high), ascending; returns how many. A NaN is no
  /// limit. `out` has room for count + 16.
  std::int64_t (*positions_between)(const float* lower, const float* upper, std::int64_t count, float low, float high,
                                    std::int32_t* out);
  /// Copies the values with !(v < low) and v < high to `out`, in order; returns how many. `out` has room for 16 more
  /// and may be `values`.
  std::int64_t (*values_between)(const float* values, std::int64_t count, float low, float high, float* out);
  /// Appends to `to` every from[i] with !(from.upper[i] < floor), in order; returns how many, and writes no more.
  /// from.key null: the key is base + i. from.lower null: to.lower stays as it is. `to` may be `from`.
  std::int64_t (*keep_not_below)(const Candidates& from, std::int64_t count, float floor, std::int32_t base,
                                 const Candidates& to);
  RowLoops loops;
  Costs costs{};
  /// Rows that share one packing of the keys (in F32 about a third of one certified row's work: 16 rows leave 2
  /// percent).
  int tile_rows = 16;
  int narrow_panels = 1;  ///< that a screen of narrow forms takes at once, at most kMostPanels; of others, it takes one
  /// Panels that hold nothing but what narrow forms need. Null where there are none.
  std::size_t (*narrow_panel_bytes)(int head_dim, ScoreModel model) = nullptr;
  Panel (*make_narrow_panel)(std::byte* memory, int head_dim, ScoreModel model) = nullptr;
  /// bounds() of keys index[0..count), as if packed without a mean, into lower[0..count) and upper[0..count) and
  /// nothing more. Null where packing panels is as fast.
  void (*gathered_bounds)(const Form& form, const KeySource& keys, const std::int32_t* index, std::int64_t count,
                          float* lower, float* upper) = nullptr;
};

inline constexpr int kMostPanels = 4;

/// nullptr where the build lacks it. Availability on this machine is dispatch.hpp's business.
[[nodiscard]] const Kernels* portable_kernels() noexcept;
[[nodiscard]] const Kernels* avx2_kernels() noexcept;
[[nodiscard]] const Kernels* avx512_kernels() noexcept;
[[nodiscard]] const Kernels* avx512bf16_kernels() noexcept;
[[nodiscard]] const Kernels* amx_kernels() noexcept;

}  // namespace dosa::cpu
