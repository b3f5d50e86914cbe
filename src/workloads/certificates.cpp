// Inputs aimed at certificates: rows where a bound is tight, useless, overflowing, or where the model and real
// arithmetic part.
#include <algorithm>
#include <cmath>
#include <limits>

#include "workloads/builder.hpp"

namespace dosa::workloads {
namespace {

/// Structured like an indexer: keys share a mean direction, queries of a row live in a small subspace, signed weights,
/// rows drift slowly, so that earlier rows' winners are good seeds.
struct Indexer {
  double mean = 0.8;  ///< length of the keys' mean direction against noise 1
  double spread = 1.0;
  double positive = 0.45;  ///< share of positive weights
};

void indexer(Builder& builder, const Indexer& how) {
  Random& random = builder.random;
  const int dim = builder.size.head_dim;
  constexpr int rank = 8;
  std::vector<double> basis(static_cast<std::size_t>(rank * dim)), mean(static_cast<std::size_t>(dim));
  for (double& x : basis) x = random.normal();
  for (double& x : mean) x = random.normal() * how.mean;
  const auto quantise = [&](const std::vector<double>& x, std::uint8_t* code) {
    double largest = 0;
    for (const double v : x) largest = std::max(largest, std::abs(v));
    for (int d = 0; d < dim; ++d)
      code[d] = e4m3_nearest(largest > 0 ? x[static_cast<std::size_t>(d)] * (448 / largest) : 0);
    return static_cast<float>(largest / 448);
  };
  std::vector<double> x(static_cast<std::size_t>(dim)), head(static_cast<std::size_t>(builder.size.heads * rank));
  std::vector<float> weight(static_cast<std::size_t>(builder.size.heads));
  for (double& v : head) v = random.normal();
  for (float& w : weight) w = static_cast<float>((random.chance(how.positive) ? 1 : -1) * random.uniform(0.01, 0.1));
  for (std::int64_t t = 0; t < builder.size.rows; ++t) {
    for (std::int64_t h = 0; h < builder.size.heads; ++h) {
      std::fill(x.begin(), x.end(), 0.0);
      for (int r = 0; r < rank; ++r) {
        double& c = head[static_cast<std::size_t>(h * rank + r)];
        c += 0.05 * random.normal();
        for (int d = 0; d < dim; ++d)
          x[static_cast<std::size_t>(d)] +=
              c * basis[static_cast<std::size_t>(r) * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)];
      }
      const float scale = quantise(x, builder.query(t, h));
      builder.weight(t, h) = weight[static_cast<std::size_t>(h)] * scale;
    }
  }
  for (std::int64_t i = 0; i < builder.size.keys; ++i) {
    double c[rank];
    for (double& v : c) v = random.normal();
    for (int d = 0; d < dim; ++d) {
      double v = mean[static_cast<std::size_t>(d)] + 0.5 * random.normal();
      for (int r = 0; r < rank; ++r)
        v += how.spread * 0.3 * c[r] *
             basis[static_cast<std::size_t>(r) * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)];
      x[static_cast<std::size_t>(d)] = v;
    }
    builder.scale[static_cast<std::size_t>(i)] = quantise(x, builder.key(i));
  }
  builder.causal_windows();
}

Workload indexer_like(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  return builder.finish();
}

/// Gives every head of a row the row's first query vector, so all dots of a key are equal.
void equal_dots(Builder& builder) {
  for (std::int64_t t = 0; t < builder.size.rows; ++t) {
    for (std::int64_t h = 1; h < builder.size.heads; ++h)
      std::copy_n(builder.query(t, 0), builder.size.head_dim, builder.query(t, h));
    for (std::int64_t h = 0; h < builder.size.heads; ++h) builder.weight(t, h) = 0;
  }
}

/// Weights (2^60, -1, -2^60) on equal dots: the binary64 chain loses the -1, real arithmetic keeps it.
Workload chain_cancels_f64(const Size& wanted) {
  Size size = wanted;
  size.heads = std::max(size.heads, 3);
  Builder builder(size);
  indexer(builder, {});
  equal_dots(builder);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    builder.weight(t, 0) = 0x1p60F;
    builder.weight(t, 1) = -1.0F;
    builder.weight(t, 2) = -0x1p60F;
  }
  return builder.finish();
}

/// 3e38 on head 8, -3e38 on head 0, -1 on head 1: sm90 takes head 8 first and overflows, the real sum is small.
Workload chain_overflows_sm90(const Size& wanted) {
  Size size = wanted;
  size.heads = std::max(size.heads, 9);
  Builder builder(size);
  indexer(builder, {});
  equal_dots(builder);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    builder.weight(t, 8) = 3e38F;
    builder.weight(t, 0) = -3e38F;
    builder.weight(t, 1) = -1.0F;
  }
  return builder.finish();
}

/// Heads identical, scaled by two, and opposite to head 0; weights of both signs.
Workload collinear_heads(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const std::uint8_t* first = builder.query(t, 0);
    for (std::int64_t h = 1; h < size.heads; ++h) {
      std::uint8_t* code = builder.query(t, h);
      for (int d = 0; d < size.head_dim; ++d) {
        const auto magnitude = static_cast<std::uint8_t>(first[d] & 0x7f);
        const auto sign = static_cast<std::uint8_t>(first[d] & kSign);
        // Halving a code of two binades above subnormal is exact: exponent minus one.
        const auto half = magnitude >= 0x10 ? static_cast<std::uint8_t>(magnitude - 8) : magnitude;
        code[d] = h % 3 == 0   ? first[d]
                  : h % 3 == 1 ? static_cast<std::uint8_t>(half | sign)
                               : static_cast<std::uint8_t>(first[d] ^ kSign);
      }
    }
  }
  return builder.finish();
}

/// Negative heads in opposite pairs of equal weight: inside a joint aggregate they cancel to zero.
Workload negative_heads_cancel(const Size& size) {
  Builder builder(size);
  indexer(builder, {.positive = 0.0});
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h + 1 < size.heads; h += 2) {
      for (int d = 0; d < size.head_dim; ++d) builder.query(t, h + 1)[d] = builder.query(t, h)[d] ^ kSign;
      builder.weight(t, h + 1) = builder.weight(t, h);
    }
    if (size.heads > 2) builder.weight(t, 0) = -builder.weight(t, 0);
  }
  return builder.finish();
}

Workload all_positive_heads(const Size& size) {
  Builder builder(size);
  indexer(builder, {.positive = 1.0});
  return builder.finish();
}

Workload zero_query_heads(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < size.heads; ++h) {
      if (h % 3 == 1 || t % 4 == 3)
        std::fill_n(builder.query(t, h), size.head_dim, static_cast<std::uint8_t>(h % 2 ? kSign : 0));
    }
  }
  return builder.finish();
}

/// The heaviest positive head, which would be the anchor, is a zero vector.
Workload zero_anchor(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t t = 0; t < size.rows; ++t) {
    builder.weight(t, 0) = 10.0F;
    std::fill_n(builder.query(t, 0), size.head_dim, std::uint8_t{0});
  }
  return builder.finish();
}

/// Keys that are, up to sign, the query heads themselves: dots as large as norms allow (Cauchy-Schwarz is an equality).
Workload keys_along_queries(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const std::uint8_t* head = builder.query(builder.random.below(size.rows), builder.random.below(size.heads));
    const std::uint8_t flip = builder.random.chance(0.5) ? kSign : 0;
    for (int d = 0; d < size.head_dim; ++d) builder.key(i)[d] = head[d] ^ flip;
  }
  return builder.finish();
}

/// Keys along the difference of two heads: what projection onto an anchor leaves over, at full length.
Workload keys_along_residuals(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  static constexpr auto value = [](std::uint8_t code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & kSign) != 0 ? -magnitude : magnitude;
  };
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const std::int64_t row = builder.random.below(size.rows);
    const std::uint8_t* a = builder.query(row, builder.random.below(size.heads));
    const std::uint8_t* b = builder.query(row, builder.random.below(size.heads));
    const double factor = builder.random.chance(0.5) ? 0.5 : -0.5;
    for (int d = 0; d < size.head_dim; ++d) builder.key(i)[d] = e4m3_nearest((value(a[d]) - value(b[d])) * factor);
  }
  return builder.finish();
}

/// Most keys equal one vector, their mean: centred norms of zero.
Workload keys_equal_mean(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 1; i < size.keys; ++i) {
    if (i % 16 != 0) std::copy_n(builder.key(0), size.head_dim, builder.key(i));
  }
  return builder.finish();
}

/// Keys in opposite pairs: the mean is zero.
Workload mean_zero(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 0; i + 1 < size.keys; i += 2) {
    for (int d = 0; d < size.head_dim; ++d) builder.key(i + 1)[d] = builder.key(i)[d] ^ kSign;
    builder.scale[static_cast<std::size_t>(i + 1)] = builder.scale[static_cast<std::size_t>(i)];
  }
  return builder.finish();
}

/// Every key many times over, copies far apart: the K-th score is shared bit for bit by seeds and others.
Workload threshold_ties(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  const std::int64_t distinct = std::max<std::int64_t>(size.top_k / 8, 3);
  for (std::int64_t i = distinct; i < size.keys; ++i) {
    std::copy_n(builder.key(i % distinct), size.head_dim, builder.key(i));
    builder.scale[static_cast<std::size_t>(i)] = builder.scale[static_cast<std::size_t>(i % distinct)];
  }
  return builder.finish();
}

/// One-hot queries and small integer keys: dots, norms and bounds are exact, so a bound can equal the threshold
/// exactly.
Workload bound_equals_threshold(const Size& size) {
  Builder builder(size);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < size.heads; ++h) {
      builder.query(t, h)[h % 2] = kOne;
      builder.weight(t, h) = h % 4 == 3 ? -1.0F : 1.0F;
    }
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    builder.key(i)[0] = e4m3_nearest(static_cast<double>(builder.random.below(4)));
    builder.key(i)[1] = e4m3_nearest(static_cast<double>(builder.random.below(3)) - 1);
  }
  builder.causal_windows();
  return builder.finish();
}

/// All keys alike but for the last bit of a code or a scale: no bound can reject anything.
Workload every_key_survives(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 1; i < size.keys; ++i) {
    std::copy_n(builder.key(0), size.head_dim, builder.key(i));
    builder.scale[static_cast<std::size_t>(i)] = builder.scale[0];
    builder.key(i)[builder.random.below(size.head_dim)] ^= 1;
    for (int d = 0; d < size.head_dim; ++d) {
      if ((builder.key(i)[d] & 0x7f) == 0x7f) builder.key(i)[d] ^= 1;
    }
  }
  return builder.finish();
}

/// K huge winners, all others far below: nothing but the winners survives.
Workload no_key_survives(const Size& size) {
  Builder builder(size);
  indexer(builder, {.positive = 0.6});
  for (std::int64_t j = 0; j < std::min(size.top_k, size.keys); ++j) {
    const std::int64_t i = builder.random.below(size.keys);
    std::copy_n(builder.query(builder.random.below(size.rows), 0), size.head_dim, builder.key(i));
    builder.scale[static_cast<std::size_t>(i)] *= 1000.0F;
  }
  for (std::int64_t t = 0; t < size.rows; ++t) builder.weight(t, 0) = 1.0F;
  return builder.finish();
}

/// Most keys score within a few roundings of the K-th: equal codes, scales a few ulps apart.
Workload crowded_boundary(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 1; i < size.keys; ++i) {
    if (i % 32 == 0) continue;
    std::copy_n(builder.key(0), size.head_dim, builder.key(i));
    builder.scale[static_cast<std::size_t>(i)] =
        float_of_bits(0x3c800000U + static_cast<std::uint32_t>(builder.random.below(5)));
  }
  return builder.finish();
}

/// Weights and scales at the ends of the exponent range: a bound overflows, or a norm underflows and must round up.
Workload exponent_ends(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  constexpr int row_exponents[] = {0, 100, -100, 120, -120, 60, -60, 127};
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < size.heads; ++h)
      builder.weight(t, h) = std::ldexp(builder.weight(t, h), row_exponents[t % 8]);
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    float& scale = builder.scale[static_cast<std::size_t>(i)];
    scale = std::ldexp(scale, static_cast<int>(i % 5 == 0   ? -120 + builder.random.below(20)
                                               : i % 5 == 1 ? 100 + builder.random.below(30)
                                                            : 0));
    if (i % 7 == 3) {
      for (int d = 0; d < size.head_dim; ++d) builder.key(i)[d] = static_cast<std::uint8_t>(builder.random.below(3));
    }
  }
  return builder.finish();
}

/// The last head of a row flips its winners from one row to the next: carried seeds are the worst there are.
Workload seeds_mislead(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t t = 1; t < size.rows; t += 2) {
    for (std::int64_t h = 0; h < size.heads; ++h) {
      for (int d = 0; d < size.head_dim; ++d) builder.query(t, h)[d] = builder.query(t - 1, h)[d] ^ kSign;
    }
  }
  return builder.finish();
}

/// Scales of both signs on an indexer: the certificate holds for non-negative scales alone.
Workload indexer_signed_scales(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (float& scale : builder.scale) {
    if (builder.random.chance(0.1)) scale = -scale;
  }
  return builder.finish();
}

/// NaN codes, NaN and infinite scales among the keys of an indexer, spread over all tiles.
Workload indexer_poisoned_keys(const Size& size) {
  Builder builder(size);
  indexer(builder, {});
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const std::int64_t kind = builder.random.below(40);
    float& scale = builder.scale[static_cast<std::size_t>(i)];
    if (kind == 0) builder.key(i)[builder.random.below(size.head_dim)] = kNaNCode;
    if (kind == 1) scale = std::numeric_limits<float>::quiet_NaN();
    if (kind == 2) scale = std::numeric_limits<float>::infinity();
    if (kind == 3) scale = -std::numeric_limits<float>::infinity();
  }
  return builder.finish();
}

}  // namespace

void append_certificate_entries(std::vector<Entry>& entries) {
  const auto add = [&](std::string_view name, std::string_view description, Workload (*make)(const Size&)) {
    entries.push_back({name, description, "", Family::certificate, true, Size{6, 4500, 16, 64, 128, 1},
                       Size{9, 131072, 32, 128, 2048, 1}, make});
  };
  add("indexer_like", "structured like an indexer: mean direction, low rank, signed weights, slow rows", indexer_like);
  add("indexer_signed_scales", "the same with negative scales at 10 %", indexer_signed_scales);
  add("indexer_poisoned_keys", "the same with NaN codes, NaN and infinite scales", indexer_poisoned_keys);
  add("chain_cancels_f64", "weights (2^60, -1, -2^60) on equal dots: f64's chain gives 0, the real sum is negative",
      chain_cancels_f64);
  add("chain_overflows_sm90", "weights 3e38, -3e38, -1 on heads 8, 0, 1 with equal dots: sm90 gives +Inf",
      chain_overflows_sm90);
  add("collinear_heads", "heads identical, halved and opposite", collinear_heads);
  add("negative_heads_cancel", "negative heads in opposite pairs", negative_heads_cancel);
  add("all_positive_heads", "every weight positive: more positive heads than a budget retains", all_positive_heads);
  add("zero_query_heads", "query heads of zeros, whole rows of them", zero_query_heads);
  add("zero_anchor", "the heaviest head is a zero vector", zero_anchor);
  add("keys_along_queries", "keys parallel and opposite to query heads", keys_along_queries);
  add("keys_along_residuals", "keys along differences of query heads", keys_along_residuals);
  add("keys_equal_mean", "most keys equal one vector", keys_equal_mean);
  add("mean_zero", "keys in opposite pairs", mean_zero);
  add("threshold_ties", "every key many times over", threshold_ties);
  add("bound_equals_threshold", "exact dots and bounds: a bound may equal the threshold", bound_equals_threshold);
  add("every_key_survives", "keys that differ in a last bit", every_key_survives);
  add("no_key_survives", "K huge winners, all others far below", no_key_survives);
  add("crowded_boundary", "nearly all scores within a few ulps of the K-th", crowded_boundary);
  add("exponent_ends", "weights and scales at the ends of the exponent range", exponent_ends);
  add("seeds_mislead", "neighbouring rows want opposite keys", seeds_mislead);
}

}  // namespace dosa::workloads
