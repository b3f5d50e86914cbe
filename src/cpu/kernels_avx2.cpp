// The kernel table for AVX2 with FMA, F16C and BMI2.
#include "cpu/kernels.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/intrinsics.hpp"
#include "cpu/key_sources.hpp"
#include "cpu/model_scores.hpp"
#include "cpu/panel_kernels.hpp"
#include "cpu/row_loops.hpp"

namespace dosa::cpu {
namespace {

struct Lanes256 : OneDimensionAStep {
  using Vector = __m256;
  static constexpr int width = 8;
  // 4 rows x 3 registers: 12 sums, 3 registers of keys and one broadcast are all 16 registers.
  static constexpr int vectors = 3, rows = 4, panel_keys = 48;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  static Vector broadcast(float x) { return _mm256_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector accumulate(Vector row, Vector key, Vector sum) { return multiply_add(row, key, sum); }
  static Vector minimum(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static Vector maximum_or_second(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector relu(Vector x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }  // NaN in, NaN out
  static Vector magnitude(Vector x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }
  /// |value| <= limit ? yes : no; NaN is within no limit.
  static Vector where_within(Vector value, Vector limit, Vector yes, Vector no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(magnitude(value), limit, _CMP_LE_OQ));
  }
};

using Table = PanelKernels<Lanes256>;
constexpr int kKeys = Table::keys;

/// As transpose_bytes of lanes_avx512.hpp, on two 16 x 16 blocks.
inline void transpose_bytes(__m256i (&row)[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    __m256i next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm256_unpacklo_epi8(row[i], row[i + 8]);
      next[2 * i + 1] = _mm256_unpackhi_epi8(row[i], row[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = next[i];
  }
}

/// 16 codes as F16 bit patterns of value * 2^-8 (see f16_of_codes of lanes_avx512.hpp).
inline __m256i f16_of_codes(__m128i codes) {
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                          _mm256_set1_epi16(static_cast<short>(0xBF80)));
}

/// Largest 2^e of 8 magnitudes; see power_of_magnitudes of lanes_avx512.hpp.
inline __m256 power_of_codes(__m128i magnitudes) {
  const __m256i m = _mm256_cvtepu8_epi32(magnitudes);
  const __m256i e = _mm256_max_epi32(_mm256_srli_epi32(m, 3), _mm256_set1_epi32(1));
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(120)), 23);
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpeq_epi32(m, _mm256_setzero_si256()), bits));
}

/// The root of a sum of squares, upward; the proof is at root_upward of pack_avx512.hpp (same operations).
inline __m256 root_upward(__m256 sum, int head_dim, float extra) {
  const float factor = 1.0F + static_cast<float>(head_dim + 16) * 0x1p-24F;
  const __m256 root =
      _mm256_mul_ps(_mm256_sqrt_ps(_mm256_mul_ps(sum, _mm256_set1_ps(factor))), _mm256_set1_ps(kRowFactor));
  return extra == 0.0F ? root : _mm256_add_ps(root, _mm256_set1_ps(extra));
}

struct Sums {
  __m256 a, b;  // lanes 0-7 and 8-15
};

template <bool with_mean, bool with_model>
inline __m128i pack_lanes(const Lane* lane, int head_dim, const float* mean, float* data, float* features) {
  Sums squares{_mm256_setzero_ps(), _mm256_setzero_ps()}, centred = squares;
  __m128i largest = _mm_setzero_si128();
  for (int chunk = 0; chunk < head_dim; chunk += 32) {
    __m256i row[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) row[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane[k].codes + chunk));
    transpose_bytes(row);
    __m256i most = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (const __m256i& codes : row) most = _mm256_max_epu8(most, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m128i top = _mm_max_epu8(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    largest = _mm_max_epu8(largest, top);
    if constexpr (with_model) {
      float* at = features + (kModel + chunk / 16) * kKeys;
      _mm256_storeu_ps(at, power_of_codes(top));
      _mm256_storeu_ps(at + 8, power_of_codes(_mm_srli_si128(top, 8)));
      _mm256_storeu_ps(at + kKeys, root_upward(squares.a, head_dim, 0.0F));
      _mm256_storeu_ps(at + kKeys + 8, root_upward(squares.b, head_dim, 0.0F));
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const __m256i f16 =
            f16_of_codes(half == 0 ? _mm256_castsi256_si128(row[i]) : _mm256_extracti128_si256(row[i], 1));
        const __m256 a = _mm256_cvtph_ps(_mm256_castsi256_si128(f16));
        const __m256 b = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1));
        squares.a = _mm256_fmadd_ps(a, a, squares.a);
        squares.b = _mm256_fmadd_ps(b, b, squares.b);
        const int d = chunk + 16 * half + i;
        if constexpr (with_mean) {
          const __m256 m = _mm256_set1_ps(mean[d]);
          const __m256 x = _mm256_fnmadd_ps(m, _mm256_set1_ps(kCodeFactor), a);
          const __m256 y = _mm256_fnmadd_ps(m, _mm256_set1_ps(kCodeFactor), b);
          centred.a = _mm256_fmadd_ps(x, x, centred.a);
          centred.b = _mm256_fmadd_ps(y, y, centred.b);
        }
        _mm256_store_ps(data + d * kKeys, a);
        _mm256_store_ps(data + d * kKeys + 8, b);
      }
    }
  }
  const __m256 norm_a = root_upward(squares.a, head_dim, 0.0F), norm_b = root_upward(squares.b, head_dim, 0.0F);
  float* at = features + kNorm * kKeys;
  _mm256_storeu_ps(at, norm_a);
  _mm256_storeu_ps(at + 8, norm_b);
  at = features + kCentred * kKeys;
  _mm256_storeu_ps(at, with_mean ? root_upward(centred.a, head_dim, 0x1p-64F) : norm_a);
  _mm256_storeu_ps(at + 8, with_mean ? root_upward(centred.b, head_dim, 0x1p-64F) : norm_b);
  return _mm_cmpeq_epi8(largest, _mm_set1_epi8(0x7f));
}

void pack(const KeySource& keys, const std::int32_t* index, std::int64_t first, int count, const PackSpec& spec,
          Panel& panel) {
  Lane lane[kKeys];
  find_lanes<kKeys>(keys, index, first, count, lane);
  panel.count = count;
  const bool with_model = panel.feature_count > kModel;
  for (int group = 0; group < kKeys; group += 16) {
    const Lane* at = lane + group;
    float* data = reinterpret_cast<float*>(panel.data) + group;
    float* features = panel.features + group;
    __m128i poisoned;
    if (spec.mean != nullptr) {
      poisoned = with_model ? pack_lanes<true, true>(at, panel.head_dim, spec.mean, data, features)
                            : pack_lanes<true, false>(at, panel.head_dim, spec.mean, data, features);
    } else {
      poisoned = with_model ? pack_lanes<false, true>(at, panel.head_dim, nullptr, data, features)
                            : pack_lanes<false, false>(at, panel.head_dim, nullptr, data, features);
    }
    const auto mask = static_cast<unsigned>(_mm_movemask_epi8(poisoned));
    for (int i = 0; i < 16; ++i) {
      panel.scale[group + i] = (mask >> static_cast<unsigned>(i) & 1U) != 0 ? __builtin_nanf("") : at[i].scale;
    }
    // A mean makes |k - mean| of a lane without a key nonzero; the interface promises zeros there.
    for (int i = group > count ? group : count; i < group + 16; ++i) {
      for (int f = 0; f < panel.feature_count; ++f) panel.features[f * kKeys + i] = 0.0F;
    }
  }
}

/// As in kernels_avx512.cpp: a chain of D fused multiply-adds in round to nearest.
Arithmetic arithmetic(int head_dim) { return {head_dim * 0x1p-24 * (1 + 0x1p-15), 0.0, 0x1p-24}; }

inline unsigned not_below(const float* values, std::int64_t left, float threshold) {
  if (left >= 8) {
    return static_cast<unsigned>(
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values), _mm256_set1_ps(threshold), _CMP_NLT_UQ)));
  }
  unsigned mask = 0;
  for (int i = 0; i < left; ++i) mask |= (values[i] < threshold ? 0U : 1U) << static_cast<unsigned>(i);
  return mask;
}

std::int64_t count_not_below(const float* values, std::int64_t count, float threshold) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 8) found += __builtin_popcount(not_below(values + i, count - i, threshold));
  return found;
}

/// For every mask of 8 lanes the lanes that are set, ascending, one a nibble.
struct Compression {
  std::uint32_t lanes[256];
  constexpr Compression() : lanes{} {
    for (unsigned mask = 0; mask < 256; ++mask) {
      unsigned at = 0;
      for (unsigned i = 0; i < 8; ++i) {
        if ((mask >> i & 1U) != 0) lanes[mask] |= i << (4 * at++);
      }
    }
  }
};
constexpr Compression kCompression;

/// The lanes set in a mask, ascending, in front.
inline __m256i lanes_of(unsigned mask) {
  const __m256i shifts = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  const __m256i nibbles = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(kCompression.lanes[mask])), shifts);
  return _mm256_and_si256(nibbles, _mm256_set1_epi32(7));
}

std::int64_t positions_between(const float* lower, const float* upper, std::int64_t count, float low, float high,
                               std::int32_t* out) {
  const __m256 l = _mm256_set1_ps(low), h = _mm256_set1_ps(high);
  std::int64_t found = 0, i = 0;
  for (; count - i >= 8; i += 8) {
    const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(_mm256_loadu_ps(upper + i), l, _CMP_NLT_UQ),
                                        _mm256_cmp_ps(_mm256_loadu_ps(lower + i), h, _CMP_NGE_UQ));
    const auto mask = static_cast<unsigned>(_mm256_movemask_ps(inside));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + found),
                        _mm256_add_epi32(lanes_of(mask), _mm256_set1_epi32(static_cast<std::int32_t>(i))));
    found += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    out[found] = static_cast<std::int32_t>(i);
    found += upper[i] < low || lower[i] >= high ? 0 : 1;
  }
  return found;
}

std::int64_t values_between(const float* values, std::int64_t count, float low, float high, float* out) {
  const __m256 l = _mm256_set1_ps(low), h = _mm256_set1_ps(high);
  std::int64_t found = 0, i = 0;
  for (; count - i >= 8; i += 8) {
    const __m256 v = _mm256_loadu_ps(values + i);
    const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(v, l, _CMP_NLT_UQ), _mm256_cmp_ps(v, h, _CMP_LT_OQ));
    const auto mask = static_cast<unsigned>(_mm256_movemask_ps(inside));
    _mm256_storeu_ps(out + found, _mm256_permutevar8x32_ps(v, lanes_of(mask)));
    found += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    const float value = values[i];
    out[found] = value;
    found += !(value < low) && value < high ? 1 : 0;
  }
  return found;
}

/// Few lanes pass: a block of 8 without any costs a comparison, each of the others a scalar copy.
std::int64_t keep_not_below(const Candidates& from, std::int64_t count, float floor, std::int32_t base,
                            const Candidates& to) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 8) {
    for (unsigned mask = not_below(from.upper + i, count - i, floor); mask != 0; mask &= mask - 1) {
      const std::int64_t at = i + __builtin_ctz(mask);
      to.key[found] = from.key == nullptr ? base + static_cast<std::int32_t>(at) : from.key[at];
      if (from.lower != nullptr) to.lower[found] = from.lower[at];
      to.upper[found++] = from.upper[at];
    }
  }
  return found;
}

inline double sum_of(__m256d x) {
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

bool read_head(const std::uint8_t* codes, int head_dim, float* values, double* absolute, double* square) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  __m256d sum[2] = {}, squares[2] = {};
  int nan = 0;
  for (int d = 0; d < head_dim; d += 16) {
    const __m128i code = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + d));
    nan |= _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(code, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f)));
    const __m256i f16 = f16_of_codes(code);
    for (int half = 0; half < 2; ++half) {
      const __m128i bits = half == 0 ? _mm256_castsi256_si128(f16) : _mm256_extracti128_si256(f16, 1);
      const __m256 x = _mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(kRowFactor));
      _mm256_storeu_ps(values + d + 8 * half, x);
      const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
      sum[half] = _mm256_add_pd(sum[half], _mm256_add_pd(_mm256_andnot_pd(sign, a), _mm256_andnot_pd(sign, b)));
      squares[half] = _mm256_fmadd_pd(a, a, _mm256_fmadd_pd(b, b, squares[half]));
    }
  }
  *absolute = sum_of(_mm256_add_pd(sum[0], sum[1]));
  *square = sum_of(_mm256_add_pd(squares[0], squares[1]));
  return nan != 0;
}

double exact_dot(const float* a, const float* b, int dim) {
  __m256d even = _mm256_setzero_pd(), odd = even;
  for (int d = 0; d < dim; d += 8) {
    even = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + d)), _mm256_cvtps_pd(_mm_loadu_ps(b + d)), even);
    odd = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + d + 4)), _mm256_cvtps_pd(_mm_loadu_ps(b + d + 4)), odd);
  }
  return sum_of(_mm256_add_pd(even, odd));
}

using Loops = SampleLoops<Lanes256>;

constexpr Kernels kKernels{
    Isa::avx2,
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
    avx2::model_bytes,
    avx2::model_row,
    avx2::model_scores,
    count_not_below,
    positions_between,
    values_between,
    keep_not_below,
    {read_head, exact_dot, Loops::add_relu, Loops::add, Loops::weighted_sum, Loops::survivors, Loops::joint_square}};

}  // namespace

const Kernels* avx2_kernels() noexcept { return &kKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* avx2_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
