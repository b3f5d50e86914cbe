// Scores that break selectors: plateaus, one coarse bin, infinities, NaN, orders that streaming selectors hate.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "workloads/builder.hpp"

namespace dosa::workloads {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::size_t count_of(const Size& size) { return static_cast<std::size_t>(size.keys); }

/// Every row sees the same wanted scores through its own window.
template <class Score>
Workload controlled(const Size& size, bool many_heads, Score&& score) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = score(static_cast<std::int64_t>(i), builder.random);
  builder.control(wanted, many_heads);
  builder.vary_windows();
  return builder.finish();
}

/// `count` distinct positions below `bound`, in random order.
std::vector<std::int64_t> positions(Random& random, std::int64_t count, std::int64_t bound) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(bound));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  count = std::min(count, bound);
  for (std::int64_t i = 0; i < count; ++i) {
    std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i + random.below(bound - i))]);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

float bits_near(std::uint32_t base, std::int64_t ulps) {
  return float_of_bits(base + static_cast<std::uint32_t>(ulps));
}

Workload all_equal(const Size& size) {
  return controlled(size, true, [](std::int64_t, Random&) { return 1.5F; });
}

Workload descending_integers(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = static_cast<float>(size.keys - static_cast<std::int64_t>(i));
  builder.control(wanted, false);
  const std::int64_t width = std::min<std::int64_t>(4096, size.keys);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const std::int64_t first = t == 0 ? 0 : builder.random.below(size.keys - width + 1);
    builder.ks[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(first);
    builder.ke[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(first + width);
  }
  return builder.finish();
}

Workload concentrated(const Size& size) {
  return controlled(size, true,
                    [](std::int64_t, Random& random) { return bits_near(0x3f800000U, random.below(65536)); });
}

Workload concentrated_half(const Size& size) {
  return controlled(size, true, [](std::int64_t, Random& random) {
    if (random.chance(0.53)) return bits_near(0x40000000U, random.below(8192));  // one fp16 bin
    return static_cast<float>(random.uniform(0.25, 4.0));
  });
}

Workload one_bin(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (float& value : wanted) value = static_cast<float>(builder.random.uniform(0, 3.0));
  const std::int64_t crowd = std::min<std::int64_t>({3000, size.keys, size.top_k * 3 / 2 + 1});
  const auto places = positions(builder.random, crowd, size.keys);
  const auto low_bits = positions(builder.random, crowd, 8192);  // distinct F32, one fp16 prefix
  for (std::size_t j = 0; j < places.size(); ++j) {
    wanted[static_cast<std::size_t>(places[j])] = bits_near(0x40490000U & ~0x1fffU, low_bits[j]);
  }
  builder.control(wanted, false);
  builder.vary_windows();
  return builder.finish();
}

Workload narrow_band(const Size& size) {
  return controlled(size, true,
                    [](std::int64_t, Random& random) { return static_cast<float>(random.uniform(10.0, 10.2)); });
}

/// relu(x - 1.28): about a tenth of the keys are positive, the others are exact zeros by relu, not by their scale.
Workload plateau(const Size& size, bool signed_scales) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (float& value : wanted) value = static_cast<float>(std::max(builder.random.normal() - 1.28, 0.0));
  // Enough zeros that the K-th place falls among them in every wide row.
  std::int64_t winners = 0;
  for (float& value : wanted) {
    if (value > 0 && ++winners >= size.top_k) value = 0;
  }
  builder.control(wanted, true);
  for (std::int64_t i = 0; i < size.keys; ++i) {
    float& value = builder.known_scores[static_cast<std::size_t>(i)];
    float& scale = builder.scale[static_cast<std::size_t>(i)];
    if (value != 0) continue;
    builder.key(i)[0] = builder.random.chance(0.5) ? kMinusOne : std::uint8_t{0};
    scale = static_cast<float>(builder.random.uniform(0.5, 2.0));
    if (signed_scales) {
      switch (builder.random.below(4)) {
        case 0:
          scale = -scale;
          break;
        case 1:
          scale = -0.0F;
          break;
        case 2:
          scale = 0.0F;
          break;
        default:
          break;
      }
    }
    value = std::copysign(0.0F, scale);
  }
  builder.vary_windows();
  return builder.finish();
}

/// Negative weights on dots that relu makes 0: -0.0 under sm90, +0.0 under f64, among +0.0 and values below.
Workload negative_zero(const Size& size) {
  Builder builder(size);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < size.heads; ++h) {
      for (int d = 0; d < size.head_dim; ++d) builder.query(t, h)[d] = builder.random.chance(0.5) ? kOne : kLargest;
      builder.weight(t, h) = -static_cast<float>(builder.random.uniform(0.1, 1.0));
    }
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const std::int64_t kind = builder.random.below(4);  // active, inactive, all zero, inactive with a negative scale
    for (int d = 0; d < size.head_dim; ++d) {
      const auto code = static_cast<std::uint8_t>(builder.random.below(0x7e) + 1);
      builder.key(i)[d] = kind == 2 ? std::uint8_t{0} : kind == 0 ? code : static_cast<std::uint8_t>(code | kSign);
    }
    if (kind == 3) builder.scale[static_cast<std::size_t>(i)] = -1.0F;
  }
  builder.vary_windows();
  return builder.finish();
}

Workload top_unique_rest_equal(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size), 1.0F);
  const auto places = positions(builder.random, size.top_k - 1, size.keys);
  for (std::size_t j = 0; j < places.size(); ++j)
    wanted[static_cast<std::size_t>(places[j])] = bits_near(0x40000000U, static_cast<std::int64_t>(j));
  builder.control(wanted, true);
  builder.vary_windows();
  return builder.finish();
}

Workload beyond_fp16(const Size& size) {
  return controlled(size, true, [](std::int64_t, Random& random) {
    const float value =
        static_cast<float>(std::ldexp(1.0 + random.uniform(), static_cast<int>(16 + random.below(112))));
    return std::isinf(value) ? std::numeric_limits<float>::max() : value;
  });
}

Workload tiny_fp16(const Size& size) {
  return controlled(size, false, [](std::int64_t, Random& random) {
    return static_cast<float>(std::ldexp(1.0 + random.uniform(), static_cast<int>(-26 - random.below(124))));
  });
}

Workload few_values(const Size& size, std::int64_t distinct) {
  return controlled(size, true, [&](std::int64_t, Random& random) {
    const std::int64_t step = random.below(distinct) - distinct / 2;
    return static_cast<float>(step) + 0.25F;
  });
}

/// The distinct scores come out of the dot products, not the scales.
Workload few_values_codes(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size), 1.0F);
  builder.control(wanted, true);
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const std::int64_t level = builder.random.below(7);
    builder.key(i)[0] = e4m3_nearest(static_cast<double>(level));
    builder.known_scores[static_cast<std::size_t>(i)] = static_cast<float>(level);
  }
  builder.vary_windows();
  return builder.finish();
}

Workload with_neg_inf(const Size& size) {
  const double finite = std::min(1.0, 0.5 * static_cast<double>(size.top_k) / static_cast<double>(size.keys));
  return controlled(size, true, [&](std::int64_t, Random& random) {
    return random.chance(finite) ? static_cast<float>(random.uniform(-2, 2)) : -kInf;
  });
}
Workload all_neg_inf(const Size& size) {
  return controlled(size, false, [](std::int64_t, Random&) { return -kInf; });
}
Workload with_pos_inf(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (float& value : wanted) value = static_cast<float>(builder.random.uniform(-2, 2));
  for (const std::int64_t i : positions(builder.random, size.top_k + 1, size.keys))
    wanted[static_cast<std::size_t>(i)] = kInf;
  builder.control(wanted, true);
  return builder.finish();
}
Workload all_pos_inf(const Size& size) {
  return controlled(size, true, [](std::int64_t, Random&) { return kInf; });
}
Workload both_inf(const Size& size) {
  return controlled(size, false, [](std::int64_t, Random& random) {
    const std::int64_t kind = random.below(3);
    return kind == 0 ? kInf : kind == 1 ? -kInf : static_cast<float>(random.uniform(-3e38, 3e38));
  });
}

/// NaN of several payloads, one of them signalling, through the scales (NaN under both models).
Workload with_nan(const Size& size, double share) {
  constexpr std::uint32_t payloads[] = {0x7fc00000U, 0x7fffffffU, 0xffc00001U, 0x7f800001U, 0xff812345U};
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (float& value : wanted) value = static_cast<float>(builder.random.uniform(-2, 2));
  builder.control(wanted, false);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!builder.random.chance(share)) continue;
    const std::uint32_t bits = payloads[builder.random.below(5)];
    builder.scale[i] = float_of_bits(bits);
    builder.known_scores[i] = std::numeric_limits<float>::quiet_NaN();
  }
  builder.vary_windows();
  return builder.finish();
}

enum class Shape : std::uint8_t { up, down, pipe, saw };
Workload ordered(const Size& size, Shape shape) {
  return controlled(size, true, [&](std::int64_t i, Random&) {
    const auto x = static_cast<double>(i) / static_cast<double>(size.keys);
    switch (shape) {
      case Shape::up:
        return static_cast<float>(x - 0.5);
      case Shape::down:
        return static_cast<float>(0.5 - x);
      case Shape::pipe:
        return static_cast<float>(x < 0.5 ? x : 1 - x);
      case Shape::saw:
        break;
    }
    return static_cast<float>(i % 64) / 64.0F;
  });
}

/// Row t scores base(i) + 2^e(t): the dot of head 0 carries the base, head 1 the shift. Large shifts collapse the row.
Workload shifted(const Size& wanted) {
  Size size = wanted;
  size.heads = std::max(size.heads, 2);
  Builder builder(size);
  constexpr int exponents[] = {0, 4, 10, 13, 20, 23, 24, 30, 100, 127};
  for (std::int64_t t = 0; t < size.rows; ++t) {
    builder.query(t, 0)[0] = kOne;
    builder.query(t, 0)[1] = kOne;
    builder.query(t, 1)[2] = kOne;
    builder.weight(t, 0) = 1.0F;
    builder.weight(t, 1) = std::ldexp(1.0F, exponents[t % 10]);
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    builder.key(i)[0] = static_cast<std::uint8_t>(builder.random.below(0x60));
    builder.key(i)[1] = static_cast<std::uint8_t>(builder.random.below(0x60));
    builder.key(i)[2] = kOne;
  }
  return builder.finish();
}

/// Row t scores base(i) * 2^e(t), down to where all become subnormal or zero and up to where they overflow.
Workload scaled(const Size& size) {
  Builder builder(size);
  std::vector<float> wanted(count_of(size));
  for (float& value : wanted) value = static_cast<float>(builder.random.uniform(1, 4));
  builder.control(wanted, false);
  builder.known_scores.clear();
  constexpr int exponents[] = {0, -149, -148, -140, -130, -126, -24, 24, 126, 127};
  for (std::int64_t t = 0; t < size.rows; ++t) builder.weight(t, size.heads / 2) = std::ldexp(1.0F, exponents[t % 10]);
  return builder.finish();
}

/// Short (below K), tied and wide rows in random order; windows of every kind over keys that hold a plateau.
Workload mixed_batch(const Size& wanted) {
  Size size = wanted;
  size.rows = std::max<std::int64_t>(size.rows, 9);
  Builder builder(size);
  const std::int64_t n = size.keys;
  std::vector<float> scores(count_of(size));
  for (std::int64_t i = 0; i < n; ++i) {
    scores[static_cast<std::size_t>(i)] = i < n / 3 ? 0.75F : static_cast<float>(builder.random.uniform(0, 1));
  }
  builder.control(scores, true);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    const auto row = static_cast<std::size_t>(t);
    std::int64_t first = 0, last = n;
    switch (t % 6) {
      case 0:
        last = std::min<std::int64_t>(n, std::max<std::int64_t>(size.top_k / 2, 1));
        break;  // short
      case 1:
        last = std::max<std::int64_t>(n / 3, 1);
        break;  // tied
      case 2:
        break;  // wide
      case 3:
        first = n / 3;
        break;
      case 4:
        first = builder.random.below(n);
        last = first + std::min(size.top_k, n - first);
        break;
      default:
        first = last = builder.random.below(n);
        break;  // empty
    }
    builder.ks[row] = static_cast<std::int32_t>(first);
    builder.ke[row] = static_cast<std::int32_t>(last);
  }
  for (std::int64_t t = size.rows - 1; t > 0; --t) {
    const auto a = static_cast<std::size_t>(t), b = static_cast<std::size_t>(builder.random.below(t + 1));
    std::swap(builder.ks[a], builder.ks[b]);
    std::swap(builder.ke[a], builder.ke[b]);
  }
  return builder.finish();
}

}  // namespace

void append_score_entries(std::vector<Entry>& entries) {
  const auto add = [&](std::string_view name, std::string_view description, std::string_view thread, Size full,
                       Workload (*make)(const Size&)) {
    const Size small{4, 3000, 8, 32, 256, 1};
    entries.push_back({name, description, thread, Family::scores, true, small, full, make});
  };
  const Size million{4, 1 << 20, 8, 32, 2048, 1}, wide{64, 262144, 4, 32, 2048, 1}, row{4, 131072, 8, 64, 2048, 1};
  add("all_equal", "every score equal", "sglang#31115", million, all_equal);
  add("descending_integers", "strictly descending integers seen through windows of 4,096", "vllm#51782",
      {4, 806736, 4, 32, 512, 1}, descending_integers);
  add("concentrated", "all scores within 65,536 ulps: eight fp16 bins", "sglang#36807", wide, concentrated);
  add("concentrated_half", "half of the scores in one fp16 bin", "sglang#36807", {4, 30938, 8, 64, 2048, 1},
      concentrated_half);
  add("one_bin", "more than K distinct scores that share an fp16 prefix lead the row", "sglang#35257",
      {4, 65536, 8, 64, 2048, 1}, one_bin);
  add("narrow_band", "uniform in [10, 10.2)", "FlagGems-vllm#831", row, narrow_band);
  add("relu_plateau", "fewer than K positive scores, all others zero by relu", "sglang#31115",
      {25, 8192, 32, 128, 2048, 1}, [](const Size& size) { return plateau(size, false); });
  add("relu_plateau_signed", "the plateau mixes +0.0 and -0.0", "sglang#31115", {25, 8192, 32, 128, 2048, 1},
      [](const Size& size) { return plateau(size, true); });
  add("negative_zero", "negative weights on inactive heads: -0.0 under sm90", "", row, negative_zero);
  add("top_unique_rest_equal", "K-1 distinct winners above a plateau", "vLLM's row kernel, measured", row,
      top_unique_rest_equal);
  add("beyond_fp16", "all scores above 65,504", "fp16 bins, measured", row, beyond_fp16);
  add("tiny_fp16", "all scores below 2^-24, many subnormal", "fp16 bins, measured", row, tiny_fp16);
  add("few_values_3", "3 distinct scores", "measured", row, [](const Size& size) { return few_values(size, 3); });
  add("few_values_50", "50 distinct scores", "measured", row, [](const Size& size) { return few_values(size, 50); });
  add("few_values_codes", "7 distinct scores, made by the dot products", "measured", row, few_values_codes);
  add("with_neg_inf", "about K/2 finite scores, all others -inf", "sglang#30645", row, with_neg_inf);
  add("all_neg_inf", "every score -inf", "sglang#30645", row, all_neg_inf);
  add("with_pos_inf", "K+1 scores of +inf", "sglang#30645", row, with_pos_inf);
  add("all_pos_inf", "every score +inf", "sglang#30645", row, all_pos_inf);
  add("both_inf", "thirds of +inf, -inf and finite scores", "sglang#30645", row, both_inf);
  add("nan_some", "NaN scales at 1 %", "vllm#49896", row, [](const Size& size) { return with_nan(size, 0.01); });
  add("nan_most", "NaN scales at 83 %", "vllm#49896", row, [](const Size& size) { return with_nan(size, 0.83); });
  add("nan_all", "NaN scales everywhere", "vllm#49896", row, [](const Size& size) { return with_nan(size, 1.0); });
  add("sorted_up", "scores ascend along the keys", "", row, [](const Size& size) { return ordered(size, Shape::up); });
  add("sorted_down", "scores descend along the keys", "", row,
      [](const Size& size) { return ordered(size, Shape::down); });
  add("organ_pipe", "scores rise to the middle and fall", "", row,
      [](const Size& size) { return ordered(size, Shape::pipe); });
  add("sawtooth", "(i mod 64) / 64", "flashinfer#2604", row,
      [](const Size& size) { return ordered(size, Shape::saw); });
  add("shifted", "rows shifted by 2^0 .. 2^127", "", {10, 65536, 8, 64, 2048, 1}, shifted);
  add("scaled", "rows scaled by 2^-149 .. 2^127", "", {10, 65536, 8, 64, 2048, 1}, scaled);
  add("mixed_batch", "short, tied, wide and empty rows in one call", "vllm#55314, flashinfer#2325, vllm#57815",
      {65, 65536, 8, 64, 2048, 1}, mixed_batch);
}

}  // namespace dosa::workloads
