// Codes, scales and weights at the edges of their formats.
#include <algorithm>
#include <cmath>
#include <limits>

#include "workloads/builder.hpp"

namespace dosa::workloads {
namespace {

/// One row of codes; returns nothing but codes (the quantisation scale is the caller's choice).
void draw_codes(Random& random, Codes kind, std::uint8_t* code, int count) {
  switch (kind) {
    case Codes::uniform:
      for (int d = 0; d < count; ++d) code[d] = finite_code(random);
      return;
    case Codes::normal:
    case Codes::heavy:
    case Codes::with_nan: {
      double value[256];
      double largest = 0;
      for (int d = 0; d < count; ++d) {
        value[d] = random.normal();
        if (kind == Codes::heavy) value[d] *= value[d] * value[d] * value[d] * value[d];
        largest = std::max(largest, std::abs(value[d]));
      }
      for (int d = 0; d < count; ++d) code[d] = e4m3_nearest(largest > 0 ? value[d] * (448 / largest) : 0);
      if (kind == Codes::with_nan && random.chance(0.01)) {
        code[random.below(count)] = static_cast<std::uint8_t>(kNaNCode | (random.chance(0.5) ? kSign : 0));
      }
      return;
    }
    case Codes::largest:
      for (int d = 0; d < count; ++d) code[d] = static_cast<std::uint8_t>(kLargest | (random.chance(0.5) ? kSign : 0));
      return;
    case Codes::subnormal:
      for (int d = 0; d < count; ++d)
        code[d] = static_cast<std::uint8_t>(random.below(8) | (random.chance(0.5) ? kSign : 0));
      return;
    case Codes::one_hot:
      std::fill_n(code, count, std::uint8_t{0});
      code[random.below(count)] = finite_code(random);
      return;
    case Codes::cancelling: {
      // The same codes at d and d + 1 with opposite signs: against a constant query the dot is zero, or one unit where
      // the last pair differs in its last bit.
      for (int d = 0; d + 1 < count; d += 2) {
        code[d] = static_cast<std::uint8_t>(random.below(0x7e));
        code[d + 1] = static_cast<std::uint8_t>(code[d] | kSign);
      }
      if (random.chance(0.5)) code[count - 2] = static_cast<std::uint8_t>(code[count - 2] + 1);
      return;
    }
    case Codes::zero:
      for (int d = 0; d < count; ++d) code[d] = random.chance(0.5) ? kSign : std::uint8_t{0};
      return;
    case Codes::straddling:
      for (int d = 0; d < count; ++d) {
        const std::int64_t exponent = random.chance(0.1) ? 14 : random.below(15);
        code[d] = static_cast<std::uint8_t>((exponent << 3) | random.below(8) | (random.chance(0.5) ? kSign : 0));
      }
      return;
  }
}

float draw_scale(Random& random, Scales kind) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  switch (kind) {
    case Scales::one:
      return 1.0F;
    case Scales::positive:
      return static_cast<float>(random.uniform(0.005, 0.05));
    case Scales::both_signs:
      return static_cast<float>(random.uniform(-0.05, 0.05));
    case Scales::ue8m0:
      return std::ldexp(1.0F, static_cast<int>(-random.below(12)));
    case Scales::tiny:
      return std::ldexp(static_cast<float>(1 + random.uniform()), static_cast<int>(-149 + random.below(40)));
    case Scales::huge:
      return std::ldexp(static_cast<float>(1 + random.below(8)) / 8, static_cast<int>(100 + random.below(28)));
    case Scales::special:
      break;
  }
  const float values[] = {0.0F,
                          -0.0F,
                          -1.0F,
                          0x1p-140F,
                          -0x1p-149F,
                          0x1p-126F,
                          0x1p127F,
                          -0x1p127F,
                          inf,
                          -inf,
                          float_of_bits(0x7fc00000U),
                          1.0F,
                          0x1p-9F,
                          3.0F,
                          0.5F,
                          0x1.fffffep127F};
  return values[random.below(16)];
}

void draw_weights(Random& random, Weights kind, float* weight, int heads) {
  for (int h = 0; h < heads; ++h) {
    const auto magnitude = static_cast<float>(random.uniform(0.001, 0.1));
    const float sign = random.chance(0.5) ? 1.0F : -1.0F;
    switch (kind) {
      case Weights::mixed:
      case Weights::with_nan:
      case Weights::dominant:
        weight[h] = sign * magnitude;
        break;
      case Weights::positive:
        weight[h] = magnitude;
        break;
      case Weights::negative:
        weight[h] = -magnitude;
        break;
      case Weights::zeros:
        weight[h] = sign * 0.0F;
        break;
      case Weights::overflowing:
        weight[h] = (h % 2 == 0 ? 1.0F : -1.0F) * std::ldexp(1.5F, 127 - h % 3);
        break;
      case Weights::subnormal:
        weight[h] = sign * std::ldexp(static_cast<float>(1 + random.below(7)), -149);
        break;
    }
  }
  if (kind == Weights::dominant) weight[random.below(heads)] = 1e6F;
  if (kind == Weights::with_nan && random.chance(0.5))
    weight[random.below(heads)] = std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

Workload mix(const Size& size, const Recipe& recipe) {
  Builder builder(size);
  for (std::int64_t t = 0; t < size.rows; ++t) {
    for (std::int64_t h = 0; h < size.heads; ++h) {
      // Cancelling keys cancel against a constant query.
      if (recipe.q == Codes::cancelling) {
        std::fill_n(builder.query(t, h), size.head_dim, static_cast<std::uint8_t>(builder.random.below(0x7e) + 1));
      } else {
        draw_codes(builder.random, recipe.q, builder.query(t, h), size.head_dim);
      }
    }
    draw_weights(builder.random, recipe.weights, &builder.weight(t, 0), size.heads);
  }
  for (std::int64_t i = 0; i < size.keys; ++i) {
    draw_codes(builder.random, recipe.k, builder.key(i), size.head_dim);
    builder.scale[static_cast<std::size_t>(i)] = draw_scale(builder.random, recipe.scales);
  }
  builder.causal_windows();
  return builder.finish();
}

void append_value_entries(std::vector<Entry>& entries) {
  const auto add = [&](std::string_view name, std::string_view description, Workload (*make)(const Size&)) {
    entries.push_back({name, description, "", Family::values, true, Size{4, 1500, 16, 64, 128, 1},
                       Size{6, 65536, 64, 128, 2048, 1}, make});
  };
  add("codes_uniform", "codes uniform over the 254 finite ones", [](const Size& s) {
    return mix(s, {Codes::uniform, Codes::uniform, Scales::positive, Weights::mixed});
  });
  add("codes_normal", "normal values quantised by the row's maximum", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::mixed});
  });
  add("codes_heavy", "heavy-tailed values quantised by the row's maximum", [](const Size& s) {
    return mix(s, {Codes::heavy, Codes::heavy, Scales::positive, Weights::mixed});
  });
  add("codes_largest", "every code +-448", [](const Size& s) {
    return mix(s, {Codes::largest, Codes::largest, Scales::one, Weights::mixed});
  });
  add("codes_subnormal", "every code subnormal", [](const Size& s) {
    return mix(s, {Codes::subnormal, Codes::subnormal, Scales::positive, Weights::mixed});
  });
  add("codes_one_hot", "one non-zero code a key", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::one_hot, Scales::positive, Weights::mixed});
  });
  add("codes_cancelling", "dots that cancel to zero or to one unit", [](const Size& s) {
    return mix(s, {Codes::cancelling, Codes::cancelling, Scales::positive, Weights::mixed});
  });
  add("codes_zero", "keys of zeros, both signs", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::zero, Scales::positive, Weights::mixed});
  });
  add("codes_straddling", "products on both sides of the 13 bits that the served arithmetic keeps", [](const Size& s) {
    return mix(s, {Codes::straddling, Codes::straddling, Scales::positive, Weights::mixed});
  });
  add("codes_nan_keys", "NaN codes in 1 % of the keys", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::with_nan, Scales::positive, Weights::mixed});
  });
  add("codes_nan_queries", "NaN codes in 1 % of the query heads", [](const Size& s) {
    return mix(s, {Codes::with_nan, Codes::normal, Scales::positive, Weights::mixed});
  });
  add("scales_both_signs", "scales of both signs", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::both_signs, Weights::mixed});
  });
  add("scales_ue8m0", "scales that are powers of two", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::ue8m0, Weights::mixed});
  });
  add("scales_special", "scales 0, -0, subnormal, 2^-126, 2^127, Inf, NaN", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::special, Weights::mixed});
  });
  add("scales_tiny", "scales down to the smallest subnormal", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::tiny, Weights::mixed});
  });
  add("scales_huge", "scales up to 2^127", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::huge, Weights::mixed});
  });
  add("weights_positive", "every weight positive", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::positive});
  });
  add("weights_negative", "every weight negative", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::negative});
  });
  add("weights_zero", "weights +0 and -0", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::zeros});
  });
  add("weights_dominant", "one weight of 10^6 among weights below 0.1", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::dominant});
  });
  add("weights_overflowing", "huge weights of alternating sign: +Inf and -Inf meet in a sum", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::one, Weights::overflowing});
  });
  add("weights_subnormal", "subnormal weights", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::huge, Weights::subnormal});
  });
  add("weights_nan", "a NaN weight in half of the rows", [](const Size& s) {
    return mix(s, {Codes::normal, Codes::normal, Scales::positive, Weights::with_nan});
  });
}

}  // namespace dosa::workloads
