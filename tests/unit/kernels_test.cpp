// Every kernel table against exact arithmetic. Inputs are chosen so that binary64 holds every exact value: E4M3 codes
// are multiples of 2^-9 below 2^9, aggregate rows multiples of 2^-20 below 2^4, so a dot of 256 terms has at most 50
// bits.
#include "cpu/kernels.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/amx_emulated.hpp"
#include "cpu/dispatch.hpp"
#include "score/score.hpp"
#include "support/emulated_tiles.hpp"

namespace dosa::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Buffer {  // 64-byte aligned, with a red zone behind it
  static constexpr std::size_t kZone = 256;
  std::vector<std::byte> memory;
  std::byte* data;
  std::size_t size;
  explicit Buffer(std::size_t bytes) : memory(bytes + kZone + 64, std::byte{0xa5}), size(bytes) {
    data = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  }
  [[nodiscard]] bool intact() const {
    for (std::size_t i = 0; i < kZone; ++i) {
      if (data[size + i] != std::byte{0xa5}) return false;
    }
    return true;
  }
};

double value(std::uint8_t code) { return std::ldexp(e4m3_units(code), -9); }

/// Keys with any stride and offset.
struct Keys {
  int head_dim;
  std::vector<std::uint8_t> storage;
  std::vector<float> scales;
  std::int64_t count, stride, offset;
  Keys(std::int64_t n, int d, std::int64_t extra = 0, std::int64_t shift = 0)
      : head_dim(d),
        storage(static_cast<std::size_t>(n * (d + extra) + shift)),
        scales(static_cast<std::size_t>(n)),
        count(n),
        stride(d + extra),
        offset(shift) {}
  std::uint8_t* key(std::int64_t i) { return storage.data() + offset + i * stride; }
  KeySource source() {
    ContiguousKeys keys;
    keys.codes = {storage.data() + offset, {count, head_dim}, {stride, 1}, {}};
    keys.scales = TensorView<const float, 1>::contiguous(scales.data(), {count});
    return KeySource(keys);
  }
};

/// Keys in pages of 2^shift tokens, in reverse order, with a gap behind each.
struct Pages {
  std::int64_t page_size, count, stride;
  int head_dim;
  std::vector<std::uint32_t> cache;
  std::vector<std::int32_t> table;
  mutable std::vector<std::int32_t> broken_table{};
  Pages(Keys& keys, int shift, std::int64_t gap)
      : page_size(std::int64_t{1} << shift),
        count((keys.count + page_size - 1) / page_size),
        stride(page_size * (keys.head_dim + 4) + gap),
        head_dim(keys.head_dim),
        cache(static_cast<std::size_t>(count * stride / 4)),
        table(static_cast<std::size_t>(count)) {
    auto* const base = reinterpret_cast<std::uint8_t*>(cache.data());
    for (std::int64_t p = 0; p < count; ++p)
      table[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(count - 1 - p);
    for (std::int64_t i = 0; i < keys.count; ++i) {
      std::uint8_t* page = base + table[static_cast<std::size_t>(i / page_size)] * stride;
      std::memcpy(page + i % page_size * head_dim, keys.key(i), static_cast<std::size_t>(head_dim));
      std::memcpy(page + page_size * head_dim + i % page_size * 4, &keys.scales[static_cast<std::size_t>(i)], 4);
    }
  }
  [[nodiscard]] KeySource source() const { return over(table); }
  /// The page is before the cache's first or behind its last.
  [[nodiscard]] KeySource source_without(std::int64_t page, bool before) const {
    broken_table = table;
    broken_table[static_cast<std::size_t>(page)] = before ? -1 : static_cast<std::int32_t>(count);
    return over(broken_table);
  }

 private:
  [[nodiscard]] KeySource over(const std::vector<std::int32_t>& pages) const {
    PagedKeys paged;
    paged.cache = reinterpret_cast<const std::uint8_t*>(cache.data());
    paged.pages = count;
    paged.page_stride = stride;
    paged.page_size = static_cast<std::int32_t>(page_size);
    paged.head_dim = head_dim;
    paged.block_table = TensorView<const std::int32_t, 2>::contiguous(pages.data(), {1, count});
    return KeySource(paged, 0);
  }
};

struct Packed {
  Buffer memory;
  Panel panel;
  Packed(const Kernels& kernels, const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
         const PackSpec& spec)
      : memory(kernels.panel_bytes(keys.head_dim(), spec.model)),
        panel(kernels.make_panel(memory.data, keys.head_dim(), spec.model)) {
    kernels.pack(keys, index, first, count, spec, panel);
    EXPECT_TRUE(memory.intact());
  }
};

struct Rows {
  int relu, aggregates, head_dim;
  std::vector<float> rows, coef;
  Rows(int r, int a, int d)
      : relu(r),
        aggregates(a),
        head_dim(d),
        rows(static_cast<std::size_t>((r + a) * d)),
        coef(static_cast<std::size_t>(r)) {}
  float* row(int j) { return rows.data() + j * head_dim; }
  [[nodiscard]] FormSpec spec() const {
    FormSpec form;
    form.head_dim = head_dim;
    form.relu_rows = relu;
    form.aggregate_rows = aggregates;
    form.rows = rows.data();
    form.coef = coef.data();
    return form;
  }
};

/// Rows of a narrow form: two a aggregate.
struct NarrowRows {
  int relu, aggregates, head_dim;
  std::vector<std::int8_t> rows;
  std::vector<float> factors;
  NarrowRows(int r, int a, int d)
      : relu(r),
        aggregates(a),
        head_dim(d),
        rows(static_cast<std::size_t>((r + 2 * a) * d)),
        factors(static_cast<std::size_t>(r + a)) {}
  [[nodiscard]] std::int8_t* row(int j) { return rows.data() + j * head_dim; }
  [[nodiscard]] FormSpec spec() const {
    FormSpec form;
    form.head_dim = head_dim;
    form.relu_rows = relu;
    form.aggregate_rows = aggregates;
    form.narrow = rows.data();
    form.narrow_factor = factors.data();
    return form;
  }
};

struct Made {
  Buffer memory;
  Form form;
  Made(const Kernels& kernels, const FormSpec& spec, ScoreModel model)
      : memory(kernels.form_bytes(spec.relu_rows + spec.aggregate_rows, spec.head_dim)),
        form(kernels.make_form(spec, model, memory.data)) {
    EXPECT_TRUE(memory.intact());
  }
};

using Random = std::mt19937_64;

/// Codes of all exponents, subnormals and both zeros included; never NaN. `narrow`: integers up to 15, whose sums F32
/// holds exactly whatever the order.
std::uint8_t random_code(Random& random, bool narrow) {
  if (narrow) {
    constexpr std::uint8_t kSmall[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x80, 0xb8, 0xc0, 0xc4, 0x57, 0xd7};
    return kSmall[random() % 12];
  }
  for (;;) {
    const auto code = static_cast<std::uint8_t>(random());
    if (!e4m3_is_nan(code)) return code;
  }
}

void fill(Keys& keys, Random& random, bool narrow) {
  for (std::uint8_t& code : keys.storage) code = random_code(random, narrow);
  for (float& s : keys.scales) {
    s = narrow ? std::ldexp(static_cast<float>(random() % 8), static_cast<int>(random() % 9) - 4)
               : std::ldexp(static_cast<float>(random() % 100000), static_cast<int>(random() % 60) - 40);
  }
}

void fill(Rows& rows, Random& random, bool narrow) {
  for (int j = 0; j < rows.relu + rows.aggregates; ++j) {
    for (int d = 0; d < rows.head_dim; ++d) {
      if (j < rows.relu || narrow) {
        rows.row(j)[d] = static_cast<float>(value(random_code(random, narrow)));
      } else {
        rows.row(j)[d] = static_cast<float>(std::ldexp(static_cast<double>(random() % (1U << 24)) - (1 << 23), -20));
      }
    }
  }
  for (float& c : rows.coef) {
    const double m = static_cast<double>(random() % (narrow ? 15U : (1U << 20))) - (narrow ? 7 : 1 << 19);
    c = static_cast<float>(narrow ? m : std::ldexp(m, static_cast<int>(random() % 12) - 22));
  }
}

/// Integers up to 120, as heads and keys become; the low half of an aggregate row up to 64.
void fill(NarrowRows& rows, Random& random) {
  for (int j = 0; j < rows.relu + 2 * rows.aggregates; ++j) {
    const bool low = j >= rows.relu && (j - rows.relu) % 2 == 1;
    const int most = low ? 64 : 120;
    for (int d = 0; d < rows.head_dim; ++d)
      rows.row(j)[d] =
          static_cast<std::int8_t>(static_cast<int>(random() % static_cast<unsigned>(2 * most + 1)) - most);
  }
  for (float& f : rows.factors)
    f = std::ldexp(static_cast<float>(random() % 4096) - 2048.0F, static_cast<int>(random() % 12) - 16);
  for (int a = 0; a < rows.aggregates; ++a) {  // a step: a power of two
    rows.factors[static_cast<std::size_t>(rows.relu + a)] = std::ldexp(1.0F, static_cast<int>(random() % 12) - 14);
  }
}

struct Dot {
  double sum = 0, magnitude = 0;  // exact
};
Dot exact_dot(const float* row, const std::uint8_t* key, int head_dim) {
  Dot dot;
  for (int d = 0; d < head_dim; ++d) {
    const double product = static_cast<double>(row[d]) * value(key[d]);
    dot.sum += product;
    dot.magnitude += std::fabs(product);
  }
  return dot;
}

double norm_of(const float* x, int n) {
  double sum = 0;
  for (int d = 0; d < n; ++d) sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return std::sqrt(sum) * (1 + 0x1p-40);
}

class KernelsTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels = *GetParam();
};

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> found;
  for (const IsaInfo& isa : available_isas()) {
    if (isa.available) found.push_back(choose(isa.isa).kernels);
  }
  if (const Kernels* const emulated = test::emulated_tiles()) found.push_back(emulated);
  return found;
}

INSTANTIATE_TEST_SUITE_P(Isa, KernelsTest, testing::ValuesIn(tables()), [](const auto& instance) {
  return std::string(name(instance.param->isa)) + (instance.param == amx_emulated_kernels() ? "_emulated" : "");
});

TEST_P(KernelsTest, PanelSizeIsWhatTheInterfacePromises) {
  EXPECT_EQ(kernels.panel_keys % 16, 0);
  EXPECT_GE(kernels.panel_keys, 16);
  EXPECT_LE(kernels.panel_keys, 64);
}

TEST_P(KernelsTest, DotsOfSmallIntegersAreExactInEveryShape) {
  Random random(1);
  for (int d = 32; d <= 256; d += 32) {
    for (int rows = 1; rows <= 132; rows += d == 128 ? 1 : 13) {
      const int aggregates = static_cast<int>(random() % static_cast<unsigned>(std::min(rows, 4) + 1));
      const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
      Keys keys(count, d);
      fill(keys, random, true);
      Rows form_rows(rows - aggregates, aggregates, d);
      fill(form_rows, random, true);
      const Packed packed(kernels, keys.source(), nullptr, 0, count, {});
      const Made made(kernels, form_rows.spec(), ScoreModel::f64);
      const int wanted = 1 + static_cast<int>(random() % static_cast<unsigned>(rows));
      Buffer dots(sizeof(float) * static_cast<std::size_t>(wanted * kernels.panel_keys));
      kernels.dots(made.form, wanted, packed.panel, reinterpret_cast<float*>(dots.data));
      ASSERT_TRUE(dots.intact());
      for (int j = 0; j < wanted; ++j) {
        for (int k = 0; k < count; ++k) {
          ASSERT_EQ(reinterpret_cast<float*>(dots.data)[j * kernels.panel_keys + k],
                    exact_dot(form_rows.row(j), keys.key(k), d).sum)
              << "D " << d << " rows " << rows << " row " << j << " key " << k;
        }
      }
    }
  }
}

TEST_P(KernelsTest, DotsStayWithinTheStatedError) {
  Random random(2);
  double worst = 0;
  for (int d = 32; d <= 256; d += 32) {
    const Arithmetic arithmetic = kernels.arithmetic(d);
    for (int repeat = 0; repeat < 20; ++repeat) {
      Keys keys(kernels.panel_keys, d);
      fill(keys, random, false);
      Rows rows(9, 3, d);
      fill(rows, random, false);
      const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {});
      const Made made(kernels, rows.spec(), ScoreModel::f64);
      std::vector<float> dots(static_cast<std::size_t>(12 * kernels.panel_keys));
      kernels.dots(made.form, 12, packed.panel, dots.data());
      for (int j = 0; j < 12; ++j) {
        const double relative =
            j < 9 ? arithmetic.dot_error : arithmetic.row_error + arithmetic.dot_error * (1 + arithmetic.row_error);
        for (int k = 0; k < kernels.panel_keys; ++k) {
          const Dot exact = exact_dot(rows.row(j), keys.key(k), d);
          const double error =
              std::fabs(static_cast<double>(dots[static_cast<std::size_t>(j * kernels.panel_keys + k)]) - exact.sum);
          ASSERT_LE(error, relative * exact.magnitude);
          worst = std::max(worst, error / (relative * exact.magnitude));
        }
      }
    }
  }
  RecordProperty("largest_share_of_the_stated_error", std::to_string(worst));
}

/// The documented formula in exact arithmetic.
struct Exact {
  double s = 0, magnitude = 0;
};
Exact exact_sum(Rows& rows, const std::uint8_t* key, float floor) {
  Exact exact;
  for (int j = 0; j < rows.relu; ++j) {
    const double term = static_cast<double>(rows.coef[static_cast<std::size_t>(j)]) *
                        std::max(0.0, exact_dot(rows.row(j), key, rows.head_dim).sum);
    exact.s += term;
    exact.magnitude += std::fabs(term);
  }
  double aggregate = static_cast<double>(floor);
  for (int j = rows.relu; j < rows.relu + rows.aggregates; ++j) {
    aggregate = std::max(aggregate, exact_dot(rows.row(j), key, rows.head_dim).sum);
  }
  exact.s -= aggregate;
  exact.magnitude += std::fabs(aggregate);
  return exact;
}

float up(float x) { return x + (std::fabs(x) * 0x1p-21F + 0x1p-145F); }
float down(float x) { return x - (std::fabs(x) * 0x1p-21F + 0x1p-145F); }

/// Small integers leave no room for rounding: the bits are those of the formula.
TEST_P(KernelsTest, BoundsOfSmallIntegersAreTheFormulaBitForBit) {
  Random random(3);
  for (int rows = 1; rows <= 132; ++rows) {
    for (int aggregates = 0; aggregates <= std::min(4, rows); ++aggregates) {
      const int d = 32 * (1 + static_cast<int>(random() % 8));
      const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
      Keys keys(count, d);
      fill(keys, random, true);
      Rows form_rows(rows - aggregates, aggregates, d);
      fill(form_rows, random, true);
      const Packed packed(kernels, keys.source(), nullptr, 0, count, {});
      FormSpec spec = form_rows.spec();
      spec.constant = 2.0F;
      spec.aggregate_floor = aggregates > 0 && random() % 2 == 0 ? -kInfinity : 0.0F;
      const Made made(kernels, spec, ScoreModel::f64);
      // With aggregates the constant is raised a little (2^-100, then 2^-22 of it): it vanishes in sums of integers.
      Buffer bounds(2 * sizeof(float) * static_cast<std::size_t>(kernels.panel_keys));
      auto* upper = reinterpret_cast<float*>(bounds.data);
      float* lower = upper + kernels.panel_keys;
      kernels.upper(made.form, packed.panel, upper);
      for (int k = 0; k < count; ++k) {
        const Exact exact = exact_sum(form_rows, keys.key(k), spec.aggregate_floor);
        const float scale = keys.scales[static_cast<std::size_t>(k)];
        if (aggregates == 0) {
          ASSERT_EQ(upper[k], up(scale * static_cast<float>(exact.s + 2)));
        } else {
          ASSERT_GE(static_cast<double>(upper[k]), static_cast<double>(scale) * (exact.s + 2));
          ASSERT_LE(upper[k], up(scale * (static_cast<float>(exact.s + 2) + 0x1p-20F +
                                          std::fabs(static_cast<float>(exact.s)) * 0x1p-23F)));
        }
      }
      if (aggregates > 0) continue;
      kernels.bounds(made.form, packed.panel, lower, upper);
      ASSERT_TRUE(bounds.intact());
      for (int k = 0; k < count; ++k) {
        const Exact exact = exact_sum(form_rows, keys.key(k), 0.0F);
        const float scale = keys.scales[static_cast<std::size_t>(k)];
        ASSERT_EQ(upper[k], up(scale * static_cast<float>(exact.s + 2)));
        ASSERT_EQ(lower[k], down(scale * static_cast<float>(exact.s - 2)));
      }
    }
  }
}

/// With nothing but the stated errors as allowance the bounds enclose the exact value.
TEST_P(KernelsTest, BoundsHoldWithTheStatedErrorsAlone) {
  Random random(4);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const int d = 32 * (1 + static_cast<int>(random() % 8));
    const int aggregates = static_cast<int>(random() % 5);
    const int relu = static_cast<int>(random() % 40) + (aggregates == 0 ? 1 : 0);
    Keys keys(kernels.panel_keys, d);
    fill(keys, random, false);
    Rows rows(relu, aggregates, d);
    fill(rows, random, false);
    FormSpec spec = rows.spec();
    spec.aggregate_floor = aggregates > 0 && repeat % 3 == 0 ? -kInfinity : 0.0F;
    const Arithmetic arithmetic = kernels.arithmetic(d);
    double allow = 0;
    for (int j = 0; j < relu; ++j) {
      allow += (arithmetic.dot_error + (relu + 4) * arithmetic.epilogue_error) *
               std::fabs(static_cast<double>(rows.coef[static_cast<std::size_t>(j)])) * norm_of(rows.row(j), d);
    }
    double aggregate = 0;
    for (int j = relu; j < relu + aggregates; ++j) aggregate = std::max(aggregate, norm_of(rows.row(j), d));
    allow +=
        (arithmetic.dot_error * (1 + arithmetic.row_error) + arithmetic.row_error + 4 * arithmetic.epilogue_error) *
        aggregate;
    spec.allow[kNorm] = static_cast<float>(allow * 1.000001);
    const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {});
    const Made made(kernels, spec, ScoreModel::f64);
    std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
    kernels.upper(made.form, packed.panel, upper.data());
    for (int k = 0; k < kernels.panel_keys; ++k) {
      const double exact = static_cast<double>(keys.scales[static_cast<std::size_t>(k)]) *
                           exact_sum(rows, keys.key(k), spec.aggregate_floor).s;
      ASSERT_GE(static_cast<double>(upper[static_cast<std::size_t>(k)]), exact);
    }
    if (aggregates > 0) continue;
    kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
    for (int k = 0; k < kernels.panel_keys; ++k) {
      const double exact =
          static_cast<double>(keys.scales[static_cast<std::size_t>(k)]) * exact_sum(rows, keys.key(k), 0.0F).s;
      ASSERT_GE(static_cast<double>(upper[static_cast<std::size_t>(k)]), exact);
      ASSERT_LE(static_cast<double>(lower[static_cast<std::size_t>(k)]), exact);
    }
  }
}

TEST_P(KernelsTest, AllowancesEnterAsDocumented) {
  Random random(5);
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (int d = 32; d <= 256; d += 32) {
      Keys keys(kernels.panel_keys, d);
      fill(keys, random, false);
      std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
      std::vector<float> mean(static_cast<std::size_t>(d), 0.5F);
      const PackSpec pack{model, mean.data()};
      const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, pack);
      const int features = feature_count(model, d);
      ASSERT_EQ(packed.panel.feature_count, features);
      Rows rows(1, 0, d);  // a zero row: only A(k) is left
      for (int alternative = 0; alternative < 2; ++alternative) {
        for (int f = 0; f < features; ++f) {
          FormSpec spec = rows.spec();
          spec.constant = 3.0F;
          spec.allow[f] = 0.75F;
          spec.has_alternative = alternative == 1;
          spec.alt_norm = 0.5F;
          spec.alt_mean = 4.0F;
          spec.alt_centred = 0.25F;
          const Made made(kernels, spec, model);
          std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
          kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
          for (int k = 0; k < kernels.panel_keys; ++k) {
            const auto feature = [&](int i) {
              return static_cast<double>(packed.panel.features[i * kernels.panel_keys + k]);
            };
            double a = 3.0 + 0.75 * feature(f);
            if (alternative == 1) a += std::min(0.5 * feature(kNorm), 4.0 + 0.25 * feature(kCentred));
            ASSERT_NEAR(static_cast<double>(upper[static_cast<std::size_t>(k)]) / (a * (1 + 0x1p-21)), 1.0, 0x1p-20);
            ASSERT_NEAR(static_cast<double>(lower[static_cast<std::size_t>(k)]) / (-a * (1 + 0x1p-21)), 1.0, 0x1p-20);
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, FeaturesAreUpperBoundsAndTight) {
  Random random(6);
  for (const bool narrow : {false, true}) {
    for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
      for (int d = 32; d <= 256; d += 32) {
        for (const bool with_mean : {false, true}) {
          const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
          Keys keys(count, d);
          fill(keys, random, narrow);
          for (int k = 0; k < count; ++k) {  // chunks of zeros and of subnormals
            if (k % 5 == 1) std::fill_n(keys.key(k), 32, static_cast<std::uint8_t>(k % 2 == 0 ? 0x80 : 0));
            if (k % 5 == 2) std::fill_n(keys.key(k) + d - 32, 32, static_cast<std::uint8_t>(0x80 + k % 8));
          }
          std::vector<float> mean(static_cast<std::size_t>(d));
          for (float& m : mean) m = static_cast<float>(value(random_code(random, true)));
          const Packed packed(kernels, keys.source(), nullptr, 0, count, {model, with_mean ? mean.data() : nullptr});
          const auto feature = [&](int f, int k) { return packed.panel.features[f * kernels.panel_keys + k]; };
          const auto bounds = [](double exact_square, float bound, double absolute) {
            const double b = static_cast<double>(bound);
            return b * b >= exact_square && b <= std::sqrt(exact_square) * (1 + 1e-5) + absolute;
          };
          for (int k = 0; k < count; ++k) {
            double squares = 0, centred = 0;
            for (int i = 0; i < d; ++i) {
              const double x = value(keys.key(k)[i]), c = x - static_cast<double>(mean[static_cast<std::size_t>(i)]);
              if (model == ScoreModel::sm90 && i % 32 == 0) {
                double largest = 0;
                for (int j = i; j < i + 32; ++j) largest = std::max(largest, std::fabs(value(keys.key(k)[j])));
                const double power = largest == 0 ? 0 : std::max(0x1p-6, std::ldexp(1.0, std::ilogb(largest)));
                ASSERT_EQ(feature(kModel + i / 16, k), power);
                ASSERT_TRUE(bounds(squares, feature(kModel + i / 16 + 1, k), 0));
                if (i == 0) {
                  ASSERT_EQ(feature(kModel + 1, k), 0.0F);
                }
              }
              squares += x * x;
              centred += c * c;
            }
            ASSERT_TRUE(bounds(squares, feature(kNorm, k), 0)) << squares << ' ' << feature(kNorm, k);
            if (with_mean) {
              ASSERT_TRUE(bounds(centred, feature(kCentred, k), 1e-15)) << centred << ' ' << feature(kCentred, k);
            } else {
              ASSERT_EQ(feature(kCentred, k), feature(kNorm, k));
            }
            ASSERT_EQ(packed.panel.scale[k], keys.scales[static_cast<std::size_t>(k)]);
          }
          for (int k = count; k < kernels.panel_keys; ++k) {
            ASSERT_EQ(packed.panel.scale[k], 0.0F);
            for (int f = 0; f < packed.panel.feature_count; ++f) ASSERT_EQ(feature(f, k), 0.0F);
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, DistancesFromATinyMeanDoNotVanish) {
  for (const float m : {0x1p-149F, 0x1p-126F, 0x1p-100F, 0x1p-70F}) {
    for (int d = 32; d <= 256; d += 32) {
      Keys keys(1, d);
      keys.scales[0] = 1.0F;
      const std::vector<float> mean(static_cast<std::size_t>(d), m);
      const Packed packed(kernels, keys.source(), nullptr, 0, 1, {ScoreModel::f64, mean.data()});
      const auto centred = static_cast<double>(packed.panel.features[kCentred * kernels.panel_keys]);
      EXPECT_GE(centred * centred, d * static_cast<double>(m) * static_cast<double>(m));
      EXPECT_LE(centred, std::sqrt(d) * static_cast<double>(m) * (1 + 1e-5) + 0x1p-63);
    }
  }
}

TEST_P(KernelsTest, EveryCodeIsDecodedExactly) {
  constexpr int kDim = 32;
  for (int code = 0; code < 256; ++code) {
    if (e4m3_is_nan(static_cast<std::uint8_t>(code))) continue;
    for (int d = 0; d < kDim; ++d) {
      Keys keys(1, kDim);
      keys.key(0)[d] = static_cast<std::uint8_t>(code);
      keys.scales[0] = 1.0F;
      Rows rows(1, 0, kDim);
      rows.row(0)[d] = 1.0F;
      const Packed packed(kernels, keys.source(), nullptr, 0, 1, {});
      const Made made(kernels, rows.spec(), ScoreModel::f64);
      std::vector<float> dots(static_cast<std::size_t>(kernels.panel_keys));
      kernels.dots(made.form, 1, packed.panel, dots.data());
      ASSERT_EQ(dots[0], value(static_cast<std::uint8_t>(code))) << code;
    }
  }
}

/// Every code at every place of a panel, read back by a row that is one there. Zeros and subnormal codes may have a
/// path of their own, which one of them opens for its neighbours: there are all of them, or only the largest, or none.
TEST_P(KernelsTest, EveryPlaceOfAPanelHoldsEveryCodeExactly) {
  for (const int d : {32, 96}) {
    Rows rows(d, 0, d);
    for (int j = 0; j < d; ++j) rows.row(j)[j] = 1.0F;
    const Made made(kernels, rows.spec(), ScoreModel::f64);
    std::vector<float> dots(static_cast<std::size_t>(d * kernels.panel_keys));
    for (const int least : {0, 7, 8}) {
      for (int round = 0; round < 256; round += d == 32 ? 1 : 16) {
        Keys keys(kernels.panel_keys, d);
        for (std::size_t i = 0; i < keys.storage.size(); ++i) {
          auto code = static_cast<std::uint8_t>(i * 37 + static_cast<std::size_t>(round));
          if (e4m3_is_nan(code)) code ^= 0x40;
          if ((code & 0x7f) < least) code |= 0x20;
          keys.storage[i] = code;
        }
        const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {});
        kernels.dots(made.form, d, packed.panel, dots.data());
        for (int j = 0; j < d; ++j) {
          for (int k = 0; k < kernels.panel_keys; ++k)
            ASSERT_EQ(dots[static_cast<std::size_t>(j * kernels.panel_keys + k)], value(keys.key(k)[j]))
                << "D " << d << " dimension " << j << " key " << k << " code " << int{keys.key(k)[j]};
        }
      }
    }
  }
}

/// Norms and distances of the extremes: rounded up, and by no more than their proof takes.
TEST_P(KernelsTest, NormsOfHardKeysAreUpperBoundsWithinTheirRoundings) {
  constexpr std::uint8_t kTiny = 0x01, kMostSubnormal = 0x07, kLeastNormal = 0x08, kLargest = 0x7e, kSign = 0x80;
  for (int d = 32; d <= 256; d += 32) {
    Keys keys(kernels.panel_keys, d);
    Random random(12);
    for (int k = 0; k < kernels.panel_keys; ++k) {
      std::uint8_t* const key = keys.key(k);
      for (int i = 0; i < d; ++i) {
        const std::uint8_t sign = random() % 2 == 0 ? kSign : std::uint8_t{0};
        const std::uint8_t kinds[] = {kLargest,
                                      kTiny,
                                      kMostSubnormal,
                                      static_cast<std::uint8_t>(i % 2 == 0 ? kLargest : kTiny),
                                      static_cast<std::uint8_t>(i == k % d ? kLargest : 0),
                                      static_cast<std::uint8_t>(i == (k + 16) % d ? kTiny : 0),
                                      static_cast<std::uint8_t>(i == k % d ? kLargest : kLeastNormal),
                                      static_cast<std::uint8_t>(i < d / 2 ? kLargest : kMostSubnormal)};
        key[i] = static_cast<std::uint8_t>(kinds[(k / 2 + k / 16) % 8] | sign);
      }
    }
    for (const float m : {0.0F, 0.3F, 448.0F, -0x1p-9F, 1e-3F}) {
      const std::vector<float> mean(static_cast<std::size_t>(d), m);
      for (const bool with_mean : {false, true}) {
        const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys,
                            {ScoreModel::f64, with_mean ? mean.data() : nullptr});
        const auto expect_close = [&](double square, float bound, double absolute) {
          EXPECT_GE(static_cast<double>(bound), std::sqrt(square) * (1 - 0x1p-50));
          EXPECT_LE(static_cast<double>(bound), std::sqrt(square) * (1 + (d + 24) * 0x1p-24) + absolute);
        };
        for (int k = 0; k < kernels.panel_keys; ++k) {
          double squares = 0, centred = 0;
          for (int i = 0; i < d; ++i) {
            const double x = value(keys.key(k)[i]), c = x - static_cast<double>(m);
            squares += x * x;
            centred += c * c;
          }
          expect_close(squares, packed.panel.features[k], 0);
          expect_close(with_mean ? centred : squares, packed.panel.features[kCentred * kernels.panel_keys + k],
                       with_mean ? 0x1p-55 : 0);
        }
      }
    }
  }
}

TEST_P(KernelsTest, KeysThatNoBoundMaySpeakOfAreUnbounded) {
  Random random(7);
  constexpr int kDim = 96;
  for (int repeat = 0; repeat < 200; ++repeat) {
    Keys keys(kernels.panel_keys, kDim);
    fill(keys, random, true);
    std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
    const auto poisoned = static_cast<std::size_t>(random() % static_cast<unsigned>(kernels.panel_keys));
    float scale_limit = std::numeric_limits<float>::max();
    switch (repeat % 7) {
      case 0:
        keys.scales[poisoned] = kNan;
        break;
      case 1:
        keys.scales[poisoned] = kInfinity;
        break;
      case 2:
        keys.scales[poisoned] = -kInfinity;
        break;
      case 3:
        keys.scales[poisoned] = -0x1p-149F;
        break;
      case 4:
        keys.key(static_cast<std::int64_t>(poisoned))[random() % kDim] = 0x7f;
        break;
      case 5:
        keys.key(static_cast<std::int64_t>(poisoned))[random() % kDim] = 0xff;
        break;
      default:
        scale_limit = 64.0F;
        keys.scales[poisoned] = std::nextafter(64.0F, 65.0F);
        keys.scales[(poisoned + 1) % keys.scales.size()] = 64.0F;
    }
    Rows rows(3, 0, kDim);
    fill(rows, random, true);
    const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {});
    FormSpec spec = rows.spec();
    spec.scale_limit = scale_limit;
    const Made made(kernels, spec, ScoreModel::f64);
    std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
    kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
    for (std::size_t k = 0; k < upper.size(); ++k) {
      if (k == poisoned) {
        ASSERT_EQ(upper[k], kInfinity);
        ASSERT_EQ(lower[k], -kInfinity);
      } else {
        ASSERT_EQ(upper[k], up(keys.scales[k] *
                               static_cast<float>(exact_sum(rows, keys.key(static_cast<std::int64_t>(k)), 0.0F).s)));
      }
    }
  }
}

TEST_P(KernelsTest, ZeroScalesAreOrdinary) {
  for (const float zero : {0.0F, -0.0F}) {
    for (const float coefficient : {1.0F, -1.0F}) {
      Keys keys(1, 32);
      std::fill_n(keys.key(0), 32, std::uint8_t{0x38});
      keys.scales[0] = zero;
      Rows rows(1, 0, 32);
      std::fill_n(rows.row(0), 32, 1.0F);
      rows.coef[0] = coefficient;
      const Packed packed(kernels, keys.source(), nullptr, 0, 1, {});
      const Made made(kernels, rows.spec(), ScoreModel::f64);
      std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
      kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
      EXPECT_EQ(upper[0], 0x1p-145F);
      EXPECT_EQ(lower[0], -0x1p-145F);
    }
  }
}

TEST_P(KernelsTest, OverflowIsNeverABound) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  Keys keys(2, 32);
  std::fill_n(keys.key(0), 32, std::uint8_t{0x7e});
  std::fill_n(keys.key(1), 32, std::uint8_t{0x38});
  keys.scales = {1.0F, 1.0F};
  const Packed packed(kernels, keys.source(), nullptr, 0, 2, {});
  std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
  for (const float first : {kHuge, -kHuge}) {
    for (const float second : {kHuge, -kHuge, 1.0F}) {
      Rows rows(2, 0, 32);
      std::fill_n(rows.row(0), 64, 448.0F);
      rows.coef = {first, second};
      const Made made(kernels, rows.spec(), ScoreModel::f64);
      kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
      for (std::size_t k = 0; k < 2; ++k) {
        EXPECT_EQ(upper[k], kInfinity);
        EXPECT_EQ(lower[k], -kInfinity);
        EXPECT_FALSE(std::isnan(upper[k]));
      }
    }
  }
  // Aggregate rows: sums that overflow on the way, up, down and to NaN.
  for (const float a : {kHuge, -kHuge, 0x1p122F, -0x1p122F}) {
    for (const float b : {kHuge, -kHuge, 1.0F}) {
      for (const float floor : {0.0F, -kInfinity}) {
        Rows rows(0, 1, 32);
        for (int d = 0; d < 32; ++d) rows.row(0)[d] = d % 2 == 0 ? a : b;
        FormSpec spec = rows.spec();
        spec.aggregate_floor = floor;
        const Made made(kernels, spec, ScoreModel::f64);
        kernels.upper(made.form, packed.panel, upper.data());
        for (int k = 0; k < 2; ++k) {
          const double exact = -std::max(static_cast<double>(floor), exact_dot(rows.row(0), keys.key(k), 32).sum);
          EXPECT_FALSE(std::isnan(upper[static_cast<std::size_t>(k)]));
          // The allowance for the dot product is the caller's: 2^-14 of the largest magnitude here.
          EXPECT_GE(static_cast<double>(upper[static_cast<std::size_t>(k)]),
                    exact - 0x1p-14 * exact_dot(rows.row(0), keys.key(k), 32).magnitude);
        }
      }
    }
  }
}

TEST_P(KernelsTest, AggregatesBelowTheFloatRangeAreStillBounded) {
  Random random(8);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const int d = 32 * (1 + static_cast<int>(random() % 8));
    Keys keys(kernels.panel_keys, d);
    fill(keys, random, false);
    std::fill(keys.scales.begin(), keys.scales.end(), 0x1p100F);
    Rows rows(0, 1, d);
    for (int i = 0; i < d; ++i) {
      rows.row(0)[i] = std::ldexp(static_cast<float>(random() % 4096) - 2048.0F, -149 + repeat % 40);
    }
    FormSpec spec = rows.spec();
    spec.aggregate_floor = repeat % 2 == 0 ? 0.0F : -kInfinity;
    const Arithmetic arithmetic = kernels.arithmetic(d);
    const double allow =
        (arithmetic.dot_error * (1 + arithmetic.row_error) + arithmetic.row_error) * norm_of(rows.row(0), d);
    spec.allow[kNorm] = std::nextafter(static_cast<float>(allow * 1.000001), kInfinity);
    const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {});
    const Made made(kernels, spec, ScoreModel::f64);
    std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys));
    kernels.upper(made.form, packed.panel, upper.data());
    for (int k = 0; k < kernels.panel_keys; ++k) {
      const double exact = 0x1p100 * exact_sum(rows, keys.key(k), spec.aggregate_floor).s;
      ASSERT_GE(static_cast<double>(upper[static_cast<std::size_t>(k)]), exact);
    }
  }
}

/// Strides, offsets, index lists and pages change where keys come from, never what is computed.
TEST_P(KernelsTest, EveryWayToAddressKeysPacksTheSamePanel) {
  Random random(9);
  const auto panel_bits = [&](const Packed& packed) {
    std::vector<float> dots(static_cast<std::size_t>(kernels.panel_keys * 33));
    Rows rows(31, 2, packed.panel.head_dim);
    Random fixed(10);
    fill(rows, fixed, true);
    const Made made(kernels, rows.spec(), ScoreModel::sm90);
    kernels.dots(made.form, 33, packed.panel, dots.data());
    std::vector<float> bits;
    for (int j = 0; j < 33; ++j) {
      for (int k = 0; k < packed.panel.count; ++k)
        bits.push_back(dots[static_cast<std::size_t>(j * kernels.panel_keys + k)]);
    }
    for (int k = 0; k < packed.panel.count; ++k) {
      bits.push_back(packed.panel.scale[k]);
      for (int f = 0; f < packed.panel.feature_count; ++f)
        bits.push_back(packed.panel.features[f * kernels.panel_keys + k]);
    }
    return bits;
  };
  for (int d = 32; d <= 256; d += 32) {
    constexpr int kCount = 640;
    Keys plain(kCount, d);
    fill(plain, random, true);
    for (int repeat = 0; repeat < 12; ++repeat) {
      const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
      std::vector<std::int32_t> index(static_cast<std::size_t>(count));
      for (std::int32_t& i : index) i = static_cast<std::int32_t>(random() % kCount);
      const bool consecutive = repeat % 2 == 0;
      if (consecutive) {
        const auto first = static_cast<std::int32_t>(random() % (kCount - 64));
        for (int i = 0; i < count; ++i) index[static_cast<std::size_t>(i)] = first + i;
      }
      const std::int32_t* list = consecutive ? nullptr : index.data();
      const PackSpec spec{ScoreModel::sm90, nullptr};
      Keys gathered(count, d);
      for (int i = 0; i < count; ++i) {
        std::memcpy(gathered.key(i), plain.key(index[static_cast<std::size_t>(i)]), static_cast<std::size_t>(d));
        gathered.scales[static_cast<std::size_t>(i)] =
            plain.scales[static_cast<std::size_t>(index[static_cast<std::size_t>(i)])];
      }
      const auto want = panel_bits(Packed(kernels, gathered.source(), nullptr, 0, count, spec));
      EXPECT_EQ(panel_bits(Packed(kernels, plain.source(), list, index[0], count, spec)), want);

      Keys strided(kCount, d, 1 + static_cast<std::int64_t>(random() % 70), static_cast<std::int64_t>(random() % 64));
      for (int i = 0; i < kCount; ++i) std::memcpy(strided.key(i), plain.key(i), static_cast<std::size_t>(d));
      strided.scales = plain.scales;
      EXPECT_EQ(panel_bits(Packed(kernels, strided.source(), list, index[0], count, spec)), want);

      const Pages pages(plain, static_cast<int>(random() % 9), 4 * static_cast<std::int64_t>(random() % 9));
      EXPECT_EQ(panel_bits(Packed(kernels, pages.source(), list, index[0], count, spec)), want);

      // A page outside the cache: its keys are unbounded, the others as before.
      const std::int64_t broken = index[0] / pages.page_size;
      const KeySource without = pages.source_without(broken, repeat % 4 < 2);
      const Packed partly(kernels, without, list, index[0], count, spec);
      Rows rows(1, 0, d);
      const Made made(kernels, rows.spec(), ScoreModel::sm90);
      std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys));
      kernels.upper(made.form, partly.panel, upper.data());
      for (int i = 0; i < count; ++i) {
        const bool missing = index[static_cast<std::size_t>(i)] / pages.page_size == broken;
        EXPECT_EQ(std::isnan(partly.panel.scale[i]), missing);
        EXPECT_EQ(upper[static_cast<std::size_t>(i)], missing ? kInfinity : 0x1p-145F);
      }
    }
  }
}

/// The last key ends where readable memory ends.
TEST_P(KernelsTest, NothingBehindTheLastKeyIsRead) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* memory =
      static_cast<std::uint8_t*>(mmap(nullptr, 5 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + 4 * page, page, PROT_NONE), 0);
  for (int d = 32; d <= 256; d += 32) {
    const auto count = std::min<std::int64_t>(kernels.panel_keys, static_cast<std::int64_t>(4 * page) / d);
    std::uint8_t* codes = memory + 4 * page - static_cast<std::size_t>(count * d);
    std::fill_n(codes, count * d, std::uint8_t{0x38});
    std::vector<float> scales(static_cast<std::size_t>(count), 1.0F);
    ContiguousKeys keys;
    keys.codes = TensorView<const std::uint8_t, 2>::contiguous(codes, {count, d});
    keys.scales = TensorView<const float, 1>::contiguous(scales.data(), {count});
    const Packed packed(kernels, KeySource(keys), nullptr, 0, static_cast<int>(count), {});
    EXPECT_GE(packed.panel.features[count - 1], std::sqrt(static_cast<float>(d)) * (1 - 0x1p-20F));
  }
  munmap(memory, 5 * page);
}

/// A key has one bound, in any panel, at any lane and among any rows.
TEST_P(KernelsTest, BoundsDoNotDependOnPanelOrLane) {
  Random random(14);
  const auto stride = static_cast<std::size_t>(kernels.panel_keys);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const int d = 32 * (1 + static_cast<int>(random() % 8));
    constexpr int kCount = 300;
    Keys keys(kCount, d);
    fill(keys, random, false);
    Rows rows(1 + static_cast<int>(random() % 40), 0, d), others(1 + static_cast<int>(random() % 40), 0, d);
    fill(rows, random, false);
    fill(others, random, false);
    const Made form(kernels, rows.spec(), ScoreModel::f64), other(kernels, others.spec(), ScoreModel::f64);
    std::vector<float> lower(kCount), upper(kCount);
    std::vector<float> panel(4 * stride);
    for (int first = 0; first < kCount; first += kernels.panel_keys) {
      const int count = std::min(kernels.panel_keys, kCount - first);
      const Packed packed(kernels, keys.source(), nullptr, first, count, {});
      kernels.bounds(form.form, packed.panel, panel.data(), panel.data() + stride);
      std::memcpy(lower.data() + first, panel.data(), static_cast<std::size_t>(count) * sizeof(float));
      std::memcpy(upper.data() + first, panel.data() + stride, static_cast<std::size_t>(count) * sizeof(float));
    }
    std::vector<std::int32_t> picked(1 + random() % stride);
    for (std::int32_t& key : picked) key = static_cast<std::int32_t>(random() % kCount);
    const Packed packed(kernels, keys.source(), picked.data(), 0, static_cast<int>(picked.size()), {});
    const auto last = static_cast<std::int32_t>(picked.size());
    std::vector<std::int32_t> kept(2 * stride);
    ScreenRow screened[] = {
        {&other.form, -kInfinity, 0, last, true, {kept.data(), panel.data(), panel.data() + stride}},
        {&form.form,
         -kInfinity,
         0,
         last,
         true,
         {kept.data() + stride, panel.data() + 2 * stride, panel.data() + 3 * stride}}};
    kernels.screen(screened, 2, &packed.panel, 1, 0);
    ASSERT_EQ(screened[1].count, last);
    for (std::size_t lane = 0; lane < picked.size(); ++lane) {
      const auto key = static_cast<std::size_t>(picked[lane]);
      ASSERT_EQ(std::memcmp(&panel[2 * stride + lane], &lower[key], sizeof(float)), 0) << lane;
      ASSERT_EQ(std::memcmp(&panel[3 * stride + lane], &upper[key], sizeof(float)), 0) << lane;
    }
  }
}

/// Keys in panels that follow one another, packed for both kinds of forms where there are two.
struct PackedRun {
  std::vector<Packed> packed;
  std::vector<Panel> panels;
  PackedRun(const Kernels& kernels, const KeySource& keys, int count, ScoreModel model, bool narrow) {
    packed.reserve(kMostPanels);
    for (int first = 0; first < count; first += kernels.panel_keys) {
      packed.emplace_back(kernels, keys, nullptr, first, std::min(kernels.panel_keys, count - first),
                          PackSpec{model, nullptr, true, narrow});
      panels.push_back(packed.back().panel);
    }
  }
};

/// What a row keeps of a run of panels, and one place more than there are keys: nothing may be written there.
struct Kept {
  static constexpr std::int32_t kUntouched = -77;
  std::vector<std::int32_t> key;
  std::vector<float> lower, upper;
  std::int64_t count = 0;
  explicit Kept(int keys)
      : key(static_cast<std::size_t>(keys + 1), kUntouched),
        lower(static_cast<std::size_t>(keys + 1), 7.0F),
        upper(static_cast<std::size_t>(keys + 1), 7.0F) {}
  [[nodiscard]] Candidates to() { return {key.data(), lower.data(), upper.data()}; }
};

void expect_same(const Kept& got, const Kept& want, int round) {
  ASSERT_EQ(got.count, want.count) << round;
  ASSERT_EQ(got.key, want.key) << round;
  ASSERT_EQ(std::memcmp(got.lower.data(), want.lower.data(), got.lower.size() * sizeof(float)), 0) << round;
  ASSERT_EQ(std::memcmp(got.upper.data(), want.upper.data(), got.upper.size() * sizeof(float)), 0) << round;
}

/// One row's own way through the panels: their bounds, and what of them reaches the floor.
void keep_alone(const Kernels& kernels, const ScreenRow& row, const std::vector<Panel>& panels, std::int32_t base,
                Kept& kept) {
  std::vector<float> lower(static_cast<std::size_t>(kernels.panel_keys)), upper(lower.size());
  for (const Panel& panel : panels) {
    const int first = std::max(row.first - base, 0), last = std::min(row.last - base, panel.count);
    if (first < last) {
      if (row.lower) {
        kernels.bounds(*row.form, panel, lower.data(), upper.data());
      } else {
        kernels.upper(*row.form, panel, upper.data());
      }
      kept.count += kernels.keep_not_below(
          {nullptr, row.lower ? lower.data() + first : nullptr, upper.data() + first}, last - first, row.floor,
          base + first, {kept.key.data() + kept.count, kept.lower.data() + kept.count, kept.upper.data() + kept.count});
    }
    base += panel.count;
  }
}

/// Many rows of all sizes and kinds at once, over several panels, windows that begin and end anywhere, keep what one
/// row at a time keeps, bit for bit.
TEST_P(KernelsTest, AScreenKeepsWhatItsBoundsKeep) {
  Random random(23);
  const bool has_narrow = kernels.costs.narrow.block_rows > 0;
  for (int round = 0; round < 80; ++round) {
    const int d = 32 * (1 + static_cast<int>(random() % (round % 2 == 0 ? 4 : 8)));
    const ScoreModel model = random() % 4 == 0 ? ScoreModel::sm90 : ScoreModel::f64;
    const int panels = 1 + static_cast<int>(random() % kMostPanels);
    const int count =
        (panels - 1) * kernels.panel_keys + 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
    constexpr std::int32_t kBase = 1000;
    Keys keys(count, d);
    fill(keys, random, round % 3 == 0);
    const PackedRun run(kernels, keys.source(), count, model, has_narrow);
    const auto items = static_cast<std::size_t>(random() % 40);
    // None, some or all of the forms are narrow.
    const unsigned narrow_of_four = has_narrow ? round % 3 == 0 ? 4 : static_cast<unsigned>(random() % 4) : 0;
    std::vector<Made> forms;
    forms.reserve(items);
    std::vector<Kept> got(items, Kept(count)), want(items, Kept(count));
    std::vector<ScreenRow> rows;
    for (std::size_t i = 0; i < items; ++i) {
      const int aggregates = static_cast<int>(random() % 5);
      const int relu = static_cast<int>(random() % 51);
      const bool narrow = random() % 4 < narrow_of_four;
      if (narrow) {
        NarrowRows integers(relu, aggregates, d);
        fill(integers, random);
        FormSpec spec = integers.spec();
        spec.allow_residual = 0.5F;
        spec.aggregate_floor = aggregates > 0 && random() % 2 == 0 ? -kInfinity : 0.0F;
        if (random() % 3 == 0) spec.scale_limit = 1.0F;
        for (int f = 0; f < feature_count(model, d); ++f) spec.allow[f] = f == kCentred ? 0 : 0.25F;
        forms.emplace_back(kernels, spec, model);
      } else {
        Rows plain(relu, aggregates, d);
        fill(plain, random, false);
        forms.emplace_back(kernels, plain.spec(), model);
      }
      const Form& form = forms.back().form;
      const bool both = aggregates == 0 && random() % 2 == 0;
      // A window inside the run, or one that reaches beyond it on either side.
      auto first = kBase + static_cast<std::int32_t>(random() % static_cast<unsigned>(count));
      auto last = first + static_cast<std::int32_t>(random() % static_cast<unsigned>(kBase + count - first + 1));
      if (random() % 3 == 0) first -= kBase;
      if (random() % 3 == 0) last += kBase;
      std::vector<float> some(static_cast<std::size_t>(kernels.panel_keys));
      kernels.upper(form, run.panels[0], some.data());
      const float floors[] = {some[random() % static_cast<unsigned>(run.panels[0].count)], -kInfinity, kInfinity, 0.0F};
      rows.push_back({&form, floors[random() % 4], first, last, both, got[i].to()});
      keep_alone(kernels, rows.back(), run.panels, kBase, want[i]);
    }
    kernels.screen(rows.data(), static_cast<int>(items), run.panels.data(), static_cast<int>(run.panels.size()), kBase);
    for (std::size_t i = 0; i < items; ++i) {
      got[i].count = rows[i].count;
      expect_same(got[i], want[i], round);
      if (HasFatalFailure()) return;
    }
  }
}

/// What a row has kept of earlier panels stays: screens go on where the last one ended.
TEST_P(KernelsTest, ScreensGoOnWhereTheLastOneEnded) {
  Random random(24);
  constexpr int kDim = 128;
  const int count = 3 * kernels.panel_keys - 5;
  Keys keys(count, kDim);
  fill(keys, random, false);
  const PackedRun run(kernels, keys.source(), count, ScoreModel::f64, false);
  Rows rows(9, 1, kDim);
  fill(rows, random, false);
  const Made form(kernels, rows.spec(), ScoreModel::f64);
  Kept apart(count), together(count);
  ScreenRow one{&form.form, 0.0F, 7, count, false, apart.to()}, all{&form.form, 0.0F, 7, count, false, together.to()};
  for (std::size_t p = 0; p < run.panels.size(); ++p)
    kernels.screen(&one, 1, &run.panels[p], 1, static_cast<std::int32_t>(p) * kernels.panel_keys);
  kernels.screen(&all, 1, run.panels.data(), static_cast<int>(run.panels.size()), 0);
  apart.count = one.count;
  together.count = all.count;
  expect_same(together, apart, 0);
}

// Bounds of keys that lie here and there, where an instruction set has a kernel of its own for them.

class GatheredTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels = *GetParam();

  struct Bounds {
    std::vector<float> lower, upper;
  };
  /// Writes what it must and no more.
  [[nodiscard]] Bounds bounds(const Form& form, const KeySource& keys, const std::vector<std::int32_t>& index) const {
    Buffer lower(sizeof(float) * index.size()), upper(lower.size);
    auto* const l = reinterpret_cast<float*>(lower.data);
    auto* const u = reinterpret_cast<float*>(upper.data);
    kernels.gathered_bounds(form, keys, index.data(), static_cast<std::int64_t>(index.size()), l, u);
    EXPECT_TRUE(lower.intact() && upper.intact());
    return {{l, l + index.size()}, {u, u + index.size()}};
  }
};

std::vector<const Kernels*> gathering_tables() {
  std::vector<const Kernels*> found;
  for (const Kernels* table : tables()) {
    if (table->gathered_bounds != nullptr) found.push_back(table);
  }
  return found;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GatheredTest);
INSTANTIATE_TEST_SUITE_P(Isa, GatheredTest, testing::ValuesIn(gathering_tables()), [](const auto& instance) {
  return std::string(name(instance.param->isa)) + (instance.param == amx_emulated_kernels() ? "_emulated" : "");
});

constexpr int kGatheredHeads[] = {1, 7, 16, 17, 32, 33, 64, 128};
constexpr std::size_t kGatheredCounts[] = {1, 15, 16, 17, 31, 32, 33, 100};

std::vector<std::int32_t> random_index(Random& random, std::size_t count, std::int64_t keys) {
  std::vector<std::int32_t> index(count);
  for (std::int32_t& i : index) i = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(keys));
  return index;
}

TEST_P(GatheredTest, SmallIntegersAreTheFormulaBitForBitInEveryShape) {
  Random random(31);
  int shape = 0;
  for (int d = 32; d <= 256; d += 32) {
    for (const int heads : kGatheredHeads) {
      for (const std::size_t count : kGatheredCounts) {
        if (++shape % 3 != 0 && d != 128 && d != 96) continue;
        Keys keys(150, d, static_cast<std::int64_t>(random() % 70), static_cast<std::int64_t>(random() % 64));
        fill(keys, random, true);
        Rows rows(heads, 0, d);
        fill(rows, random, true);
        FormSpec spec = rows.spec();
        spec.constant = 2.0F;
        const Made made(kernels, spec, shape % 2 == 0 ? ScoreModel::f64 : ScoreModel::sm90);
        const std::vector<std::int32_t> index = random_index(random, count, keys.count);
        const Bounds got = bounds(made.form, keys.source(), index);
        for (std::size_t i = 0; i < count; ++i) {
          const Exact exact = exact_sum(rows, keys.key(index[i]), 0.0F);
          const float scale = keys.scales[static_cast<std::size_t>(index[i])];
          ASSERT_EQ(got.upper[i], up(scale * static_cast<float>(exact.s + 2))) << d << ' ' << heads << ' ' << i;
          ASSERT_EQ(got.lower[i], down(scale * static_cast<float>(exact.s - 2))) << d << ' ' << heads << ' ' << i;
        }
      }
    }
  }
}

TEST_P(GatheredTest, BoundsHoldWithTheStatedErrorsAlone) {
  Random random(32);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const int d = 32 * (1 + repeat % 8), heads = kGatheredHeads[random() % 8];
    Keys keys(40, d);
    fill(keys, random, false);
    Rows rows(heads, 0, d);
    fill(rows, random, false);
    FormSpec spec = rows.spec();
    const Arithmetic arithmetic = kernels.arithmetic(d);
    double allow = 0;
    for (int j = 0; j < heads; ++j) {
      allow += (arithmetic.dot_error + (heads + 4) * arithmetic.epilogue_error) *
               std::fabs(static_cast<double>(rows.coef[static_cast<std::size_t>(j)])) * norm_of(rows.row(j), d);
    }
    spec.allow[kNorm] = static_cast<float>(allow * 1.000001);
    const Made made(kernels, spec, repeat % 2 == 0 ? ScoreModel::f64 : ScoreModel::sm90);
    const std::vector<std::int32_t> index = random_index(random, 40, keys.count);
    const Bounds got = bounds(made.form, keys.source(), index);
    for (std::size_t i = 0; i < index.size(); ++i) {
      const double exact = static_cast<double>(keys.scales[static_cast<std::size_t>(index[i])]) *
                           exact_sum(rows, keys.key(index[i]), 0.0F).s;
      ASSERT_GE(static_cast<double>(got.upper[i]), exact);
      ASSERT_LE(static_cast<double>(got.lower[i]), exact);
    }
  }
}

/// Every code at every dimension, read back by a head that is one there and another, subtracted, that is minus one.
/// Zeros and subnormal codes may have a path of their own: there are all of them, or only the largest, or none.
TEST_P(GatheredTest, EveryDimensionHoldsEveryCodeExactly) {
  for (const int d : {32, 64, 96}) {
    for (const int least : {0, 7, 8}) {
      Keys keys(256, d);
      std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
      std::vector<std::int32_t> index;
      for (std::int32_t k = 0; k < 256; ++k) {
        index.push_back(k);
        for (int j = 0; j < d; ++j) {
          auto code = static_cast<std::uint8_t>(k + j * 37);
          if (e4m3_is_nan(code)) code ^= 0x40;
          if ((code & 0x7f) < least) code |= 0x20;
          keys.key(k)[j] = code;
        }
      }
      for (int j = 0; j < d; ++j) {
        Rows rows(2, 0, d);
        rows.row(0)[j] = 1.0F;
        rows.row(1)[j] = -1.0F;
        rows.coef = {1.0F, -1.0F};
        const Made made(kernels, rows.spec(), ScoreModel::f64);
        const Bounds got = bounds(made.form, keys.source(), index);
        for (std::size_t k = 0; k < index.size(); ++k) {
          const auto want = static_cast<float>(value(keys.key(index[k])[j]));
          ASSERT_EQ(got.upper[k], up(want)) << "D " << d << " dimension " << j << " key " << k;
          ASSERT_EQ(got.lower[k], down(want)) << "D " << d << " dimension " << j << " key " << k;
        }
      }
    }
  }
}

/// A form of nothing but one feature less what it must not be below: the sign of the bound tells.
TEST_P(GatheredTest, FeaturesAreUpperBoundsAndTight) {
  Random random(33);
  for (const bool narrow : {false, true}) {
    for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
      for (int d = 32; d <= 256; d += 32) {
        Keys keys(33, d);
        fill(keys, random, narrow);
        std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
        for (std::int64_t k = 0; k < keys.count; ++k) {  // zeros, subnormals, the extremes of a pair
          if (k % 7 == 1) std::fill_n(keys.key(k), 32, static_cast<std::uint8_t>(k % 2 == 0 ? 0x80 : 0));
          if (k % 7 == 2) std::fill_n(keys.key(k) + d - 32, 32, static_cast<std::uint8_t>(0x80 + k % 8));
          if (k % 7 == 3) {
            for (int i = 0; i < d; ++i) keys.key(k)[i] = i % 4 < k % 4 ? 0x7e : 0x08;
          }
          if (k % 7 == 4) std::fill_n(keys.key(k), d, std::uint8_t{0x7e});
        }
        Rows rows(1, 0, d);
        for (int f = 0; f < feature_count(model, d); ++f) {
          for (std::int32_t k = 0; k < keys.count; ++k) {
            double square = 0, exact = 0;
            for (int i = 0; i < (f < kModel ? d : (f - kModel) / 2 * 32); ++i)
              square += value(keys.key(k)[i]) * value(keys.key(k)[i]);
            exact = std::sqrt(square);
            const bool is_power = f >= kModel && (f - kModel) % 2 == 0;
            if (is_power) {
              double largest = 0;
              for (int i = 0; i < 32; ++i)
                largest = std::max(largest, std::fabs(value(keys.key(k)[(f - kModel) * 16 + i])));
              exact = largest == 0 ? 0 : std::max(0x1p-6, std::ldexp(1.0, std::ilogb(largest)));
            }
            auto least = static_cast<float>(exact);
            if (static_cast<double>(least) * static_cast<double>(least) < square && !is_power)
              least = std::nextafter(least, kInfinity);
            FormSpec spec = rows.spec();
            spec.constant = -least;
            spec.allow[f] = 1.0F;
            const Made made(kernels, spec, model);
            std::vector<std::int32_t> index(static_cast<std::size_t>(k % 5), (k + 1) % 33);
            index.push_back(k);
            const float above = bounds(made.form, keys.source(), index).upper.back();
            ASSERT_GT(above, 0.0F) << "D " << d << " feature " << f << " key " << k;
            if (is_power) {
              ASSERT_EQ(above, 0x1p-145F);
            } else {
              ASSERT_LE(above, least * 0.008F + 0x1p-145F) << "D " << d << " feature " << f << " key " << k;
            }
          }
        }
      }
    }
  }
}

TEST_P(GatheredTest, AllowancesAreThoseOfAPanel) {
  Random random(34);
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (int d = 32; d <= 256; d += 32) {
      Keys keys(kernels.panel_keys, d);
      fill(keys, random, false);
      Rows rows(5, 0, d);
      fill(rows, random, true);
      FormSpec spec = rows.spec();
      spec.constant = 3.0F;
      for (int f = 0; f < feature_count(model, d); ++f) spec.allow[f] = static_cast<float>(random() % 100) * 0.01F;
      spec.has_alternative = random() % 2 == 0;
      spec.alt_norm = 0.5F;
      spec.alt_mean = 400.0F;
      spec.alt_centred = 0.25F;
      const Made made(kernels, spec, model);
      const Packed packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, {model, nullptr});
      std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower(upper.size());
      kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
      std::vector<std::int32_t> index(upper.size());
      for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(index.size() - 1 - i);
      const Bounds got = bounds(made.form, keys.source(), index);
      for (std::size_t i = 0; i < index.size(); ++i) {
        const auto k = static_cast<std::size_t>(index[i]);
        const double a = static_cast<double>(upper[k]) - static_cast<double>(lower[k]);
        ASSERT_NEAR(static_cast<double>(got.upper[i]), static_cast<double>(upper[k]), a * 0.005);
        ASSERT_NEAR(static_cast<double>(got.lower[i]), static_cast<double>(lower[k]), a * 0.005);
      }
    }
  }
}

TEST_P(GatheredTest, KeysThatNoBoundMaySpeakOfAreUnbounded) {
  Random random(35);
  for (int repeat = 0; repeat < 600; ++repeat) {
    const int d = 32 * (1 + repeat / 2 % 8);
    Keys keys(50, d);
    fill(keys, random, repeat % 2 == 0);
    std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
    if (repeat % 3 != 0) {  // no zeros and no subnormals, which may open the path that finds a NaN code
      for (std::uint8_t& code : keys.storage) code |= (code & 0x78) == 0 ? 0x20 : 0;
    }
    const auto poisoned = static_cast<std::size_t>(random() % 50);
    const auto at = static_cast<std::int64_t>(poisoned);
    float scale_limit = std::numeric_limits<float>::max();
    const float bad_scales[] = {kNan, kInfinity, -kInfinity, -0x1p-149F, -1.0F};
    switch (random() % 4) {
      case 0:
        keys.scales[poisoned] = bad_scales[random() % 5];
        break;
      case 1:
        scale_limit = 64.0F;
        keys.scales[poisoned] = std::nextafter(64.0F, 65.0F);
        keys.scales[(poisoned + 1) % keys.scales.size()] = 64.0F;
        break;
      default:
        keys.key(at)[random() % static_cast<unsigned>(d)] = random() % 2 == 0 ? 0x7f : 0xff;
    }
    Rows rows(3, 0, d);
    fill(rows, random, true);
    FormSpec spec = rows.spec();
    spec.scale_limit = scale_limit;
    const Made made(kernels, spec, repeat % 4 < 2 ? ScoreModel::f64 : ScoreModel::sm90);
    std::vector<std::int32_t> index = random_index(random, 100, keys.count);
    index[random() % 100] = static_cast<std::int32_t>(poisoned);
    const Bounds got = bounds(made.form, keys.source(), index);
    for (std::size_t i = 0; i < index.size(); ++i) {
      if (index[i] == static_cast<std::int32_t>(poisoned)) {
        ASSERT_EQ(got.upper[i], kInfinity);
        ASSERT_EQ(got.lower[i], -kInfinity);
      } else {
        ASSERT_LT(got.upper[i], kInfinity) << repeat;
        ASSERT_GT(got.lower[i], -kInfinity) << repeat;
      }
    }
  }
}

TEST_P(GatheredTest, OverflowIsNeverABound) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  Keys keys(2, 64);
  std::fill_n(keys.key(0), 64, std::uint8_t{0x7e});
  std::fill_n(keys.key(1), 64, std::uint8_t{0x38});
  keys.scales = {1.0F, 1.0F};
  for (const float first : {kHuge, -kHuge}) {
    for (const float second : {kHuge, -kHuge, 1.0F}) {
      Rows rows(2, 0, 64);
      std::fill_n(rows.row(0), 128, 448.0F);
      rows.coef = {first, second};
      const Made made(kernels, rows.spec(), ScoreModel::f64);
      const Bounds got = bounds(made.form, keys.source(), {0, 1});
      for (std::size_t k = 0; k < 2; ++k) {
        EXPECT_EQ(got.upper[k], kInfinity);
        EXPECT_EQ(got.lower[k], -kInfinity);
      }
    }
  }
  const Made nothing(kernels, Rows(0, 0, 64).spec(), ScoreModel::f64);
  EXPECT_EQ(bounds(nothing.form, keys.source(), {1, 0}).upper, std::vector<float>(2, 0x1p-145F));
}

/// Strides, offsets and pages change where keys come from, and their neighbours in the list what they are computed
/// beside, but no bound. (Of normal codes: a zero may open a path for its neighbours that rounds norms up less.)
TEST_P(GatheredTest, ABoundDependsOnItsKeyAlone) {
  Random random(36);
  constexpr std::int64_t kCount = 640;
  for (int d = 32; d <= 256; d += 32) {
    Keys plain(kCount, d);
    fill(plain, random, false);
    for (std::uint8_t& code : plain.storage) code |= (code & 0x78) == 0 ? 0x20 : 0;
    Rows rows(1 + static_cast<int>(random() % 40), 0, d);
    fill(rows, random, false);
    FormSpec spec = rows.spec();
    for (int f = 0; f < feature_count(ScoreModel::sm90, d); ++f) spec.allow[f] = 0.25F;
    const Made made(kernels, spec, ScoreModel::sm90);
    std::vector<std::int32_t> all(kCount);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    const Bounds want = bounds(made.form, plain.source(), all);
    for (int repeat = 0; repeat < 6; ++repeat) {
      const std::vector<std::int32_t> index = random_index(random, 1 + random() % 200, kCount);
      const auto expect_same = [&](const KeySource& keys) {
        const Bounds got = bounds(made.form, keys, index);
        for (std::size_t i = 0; i < index.size(); ++i) {
          const auto k = static_cast<std::size_t>(index[i]);
          ASSERT_EQ(std::memcmp(&got.upper[i], &want.upper[k], sizeof(float)), 0) << "D " << d << " place " << i;
          ASSERT_EQ(std::memcmp(&got.lower[i], &want.lower[k], sizeof(float)), 0) << "D " << d << " place " << i;
        }
      };
      expect_same(plain.source());
      Keys strided(kCount, d, 1 + static_cast<std::int64_t>(random() % 70), static_cast<std::int64_t>(random() % 64));
      for (std::int64_t i = 0; i < kCount; ++i) std::memcpy(strided.key(i), plain.key(i), static_cast<std::size_t>(d));
      strided.scales = plain.scales;
      expect_same(strided.source());
      const Pages pages(plain, static_cast<int>(random() % 9), 4 * static_cast<std::int64_t>(random() % 9));
      expect_same(pages.source());

      const std::int64_t broken = index[0] / pages.page_size;
      const Bounds got = bounds(made.form, pages.source_without(broken, repeat % 2 == 0), index);
      for (std::size_t i = 0; i < index.size(); ++i) {
        const bool missing = index[i] / pages.page_size == broken;
        const auto k = static_cast<std::size_t>(index[i]);
        const double a = (static_cast<double>(want.upper[k]) - static_cast<double>(want.lower[k])) * 0.005;
        if (missing) {
          ASSERT_EQ(got.upper[i], kInfinity);
          ASSERT_EQ(got.lower[i], -kInfinity);
        } else {
          ASSERT_NEAR(static_cast<double>(got.upper[i]), static_cast<double>(want.upper[k]), a);
          ASSERT_NEAR(static_cast<double>(got.lower[i]), static_cast<double>(want.lower[k]), a);
        }
      }
    }
  }
}

/// The last key ends where readable memory ends.
TEST_P(GatheredTest, NothingBehindTheLastKeyIsRead) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* memory =
      static_cast<std::uint8_t*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + page, page, PROT_NONE), 0);
  for (int d = 32; d <= 256; d += 32) {
    std::uint8_t* codes = memory + page - d;
    std::fill_n(codes, d, std::uint8_t{0x38});
    const float scale = 1.0F;
    ContiguousKeys keys;
    keys.codes = TensorView<const std::uint8_t, 2>::contiguous(codes, {1, d});
    keys.scales = TensorView<const float, 1>::contiguous(&scale, {1});
    Rows rows(1, 0, d);
    std::fill_n(rows.row(0), d, 1.0F);
    rows.coef = {1.0F};
    const Made made(kernels, rows.spec(), ScoreModel::f64);
    for (std::size_t count : {std::size_t{1}, std::size_t{5}, std::size_t{33}}) {
      const Bounds got = bounds(made.form, KeySource(keys), std::vector<std::int32_t>(count, 0));
      for (const float bound : got.upper) EXPECT_EQ(bound, up(static_cast<float>(d)));
    }
  }
  munmap(memory, 2 * page);
}

// Narrow forms (T11), where an instruction set has them: keys as integers of a byte, times a power of two.

class NarrowTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels = *GetParam();

  /// A key as the pack stored it (the layout: amx_narrow.hpp).
  struct Stored {
    std::vector<int> integers;
    double step, residual;
  };
  static Stored stored(const Panel& panel, int key) {
    Stored found{{}, static_cast<double>(panel.step[key]), static_cast<double>(panel.residual[key])};
    for (int d = 0; d < panel.head_dim; ++d) {
      const int at = d / 64 * 4096 + key / 16 * 1024 + d % 64 / 4 * 64 + key % 16 * 4 + d % 4;
      found.integers.push_back(static_cast<std::int8_t>(panel.narrow[at]));
    }
    return found;
  }

  /// Norms of a key: of the codes, of what integers leave of them, and of the first chunks.
  struct Norms {
    double square = 0, lost = 0;
    std::vector<double> before;  ///< |k|^2 over the chunks before each
  };
  static Norms norms(const std::uint8_t* key, const Stored& integers) {
    Norms found;
    for (std::size_t d = 0; d < integers.integers.size(); ++d) {
      if (d % 32 == 0) found.before.push_back(found.square);
      const double x = value(key[d]), left = x - integers.step * integers.integers[d];
      found.square += x * x;
      found.lost += left * left;
    }
    return found;
  }

  void expect_valid(const Panel& panel, int lane, const std::uint8_t* key, const std::string& what) const {
    const Stored integers = stored(panel, lane);
    for (const int i : integers.integers) ASSERT_LE(std::abs(i), 120) << what;
    ASSERT_GT(integers.step, 0) << what;
    int exponent = 0;
    ASSERT_EQ(std::frexp(integers.step, &exponent), 0.5) << what;
    const Norms exact = norms(key, integers);
    ASSERT_GE(integers.residual * integers.residual, exact.lost) << what;
    const auto feature = [&](int f) { return static_cast<double>(panel.features[f * kernels.panel_keys + lane]); };
    // Never more than half a step of each element is lost, and the tables tell it to a thousandth of its square; of a
    // subnormal code beside a large one they tell the most that one loses.
    const int d = panel.head_dim;
    int subnormal = 0;
    for (int i = 0; i < d; ++i) subnormal += (key[i] & 0x7f) < 8 && (key[i] & 0x7f) != 0 ? 1 : 0;
    const double most_lost =
        exact.lost + integers.step * integers.step * ((d - subnormal) / 1020.0 + subnormal * 0.1925);
    ASSERT_LE(integers.residual, std::sqrt(most_lost) * (1 + 1e-5)) << what;
    ASSERT_LE(integers.residual, integers.step * 0.5 * std::sqrt(d) * (1 + 1e-5)) << what;
    const double norm = std::sqrt(exact.square);
    ASSERT_GE(feature(kNorm) * feature(kNorm), exact.square) << what;
    ASSERT_LE(feature(kNorm), (norm + 2 * integers.residual) * (1 + 1e-5)) << what;
    ASSERT_EQ(feature(kCentred), feature(kNorm)) << what;
    if (panel.feature_count == kModel) return;
    for (int chunk = 0; chunk < d / 32; ++chunk) {
      double largest = 0;
      for (int i = 32 * chunk; i < 32 * chunk + 32; ++i) largest = std::max(largest, std::fabs(value(key[i])));
      ASSERT_EQ(feature(kModel + 2 * chunk), largest == 0 ? 0 : std::max(0x1p-6, std::ldexp(1.0, std::ilogb(largest))))
          << what << " chunk " << chunk;
      const double square = exact.before[static_cast<std::size_t>(chunk)], prefix = feature(kModel + 2 * chunk + 1);
      ASSERT_GE(prefix * prefix, square) << what << " chunk " << chunk;
      ASSERT_LE(prefix, (std::sqrt(square) + 2 * integers.residual) * (1 + 1e-5)) << what << " chunk " << chunk;
      if (chunk == 0) {
        ASSERT_EQ(prefix, 0) << what;
      }
    }
  }
};

std::vector<const Kernels*> narrow_tables() {
  std::vector<const Kernels*> found;
  for (const Kernels* table : tables()) {
    if (table->costs.narrow.block_rows > 0) found.push_back(table);
  }
  return found;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NarrowTest);
INSTANTIATE_TEST_SUITE_P(Isa, NarrowTest, testing::ValuesIn(narrow_tables()), [](const auto& instance) {
  return std::string(name(instance.param->isa)) + (instance.param == amx_emulated_kernels() ? "_emulated" : "");
});

/// A panel with room for both kinds, or for narrow forms alone: what narrow forms read is the same.
struct NarrowPacked {
  Buffer memory;
  Panel panel;
  NarrowPacked(const Kernels& kernels, const KeySource& keys, const std::int32_t* index, std::int64_t first, int count,
               ScoreModel model)
      : memory(kernels.narrow_panel_bytes(keys.head_dim(), model)),
        panel(kernels.make_narrow_panel(memory.data, keys.head_dim(), model)) {
    kernels.pack(keys, index, first, count, {model, nullptr, false, true}, panel);
    EXPECT_TRUE(memory.intact());
  }
};

/// The most that a narrow form reads of a panel, one after another.
std::vector<std::byte> narrow_bits(const Panel& panel, int panel_keys) {
  std::vector<std::byte> bits;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(data);
    bits.insert(bits.end(), from, from + bytes);
  };
  const auto keys = static_cast<std::size_t>(panel_keys);
  add(panel.narrow, 64 * keys * static_cast<std::size_t>((panel.head_dim + 63) / 64));
  add(panel.step, 4 * keys);
  add(panel.residual, 4 * keys);
  add(panel.scale, 4 * keys);
  add(panel.features, 4 * keys * static_cast<std::size_t>(panel.feature_count));
  return bits;
}

/// What integers cannot hold, and the sizes between which a key's step is chosen.
void fill_hard(Keys& keys, Random& random) {
  fill(keys, random, false);
  for (std::int64_t k = 0; k < keys.count; ++k) {
    std::uint8_t* const key = keys.key(k);
    const auto sign = [&] { return static_cast<std::uint8_t>(random() & 0x80U); };
    const auto largest = static_cast<unsigned>(random() % 0x7f);
    for (int d = 0; d < keys.head_dim; ++d) {
      const auto any = static_cast<unsigned>(random());
      switch (k % 9) {
        case 0:  // every code up to some largest one
          key[d] = static_cast<std::uint8_t>(any % (largest + 1)) | sign();
          break;
        case 1:  // subnormal all
          key[d] = static_cast<std::uint8_t>(any % 8) | sign();
          break;
        case 2:  // zeros and one other
          key[d] = static_cast<std::uint8_t>(d == static_cast<int>(largest) % keys.head_dim ? largest : 0) | sign();
          break;
        case 3:  // every subnormal beside one large one
          key[d] =
              static_cast<std::uint8_t>(d == static_cast<int>(largest) % keys.head_dim ? largest : any % 8) | sign();
          break;
        case 4:  // the largest
          key[d] = 0x7eU | sign();
          break;
        case 5:  // half a step beside the largest
          key[d] = static_cast<std::uint8_t>(d % 7 == 0 ? 0x78 : any % 2 == 0 ? 0x40 : 0) | sign();
          break;
        case 6:
          key[d] = sign();
          break;
        case 7:  // codes of one size: none loses anything
          key[d] = static_cast<std::uint8_t>((largest & 0x78U) + any % 8) | sign();
          if (e4m3_is_nan(key[d])) key[d] ^= 1;
          break;
        default:
          break;
      }
    }
  }
}

TEST_P(NarrowTest, WhatIntegersLeaveOfAKeyIsKnown) {
  Random random(41);
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (int d = 32; d <= 256; d += 32) {
      for (int round = 0; round < 4; ++round) {
        const int count = round == 0 ? kernels.panel_keys
                                     : 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
        Keys keys(300, d, static_cast<std::int64_t>(random() % 70), static_cast<std::int64_t>(random() % 64));
        fill_hard(keys, random);
        std::vector<std::int32_t> index(static_cast<std::size_t>(count));
        for (std::int32_t& i : index) i = static_cast<std::int32_t>(random() % 300);
        const bool gathered = round % 2 == 1;
        const std::int32_t* const list = gathered ? index.data() : nullptr;
        const NarrowPacked packed(kernels, keys.source(), list, 17, count, model);
        for (int lane = 0; lane < count; ++lane) {
          const std::int64_t key = gathered ? index[static_cast<std::size_t>(lane)] : 17 + lane;
          expect_valid(packed.panel, lane, keys.key(key), "D " + std::to_string(d) + " key " + std::to_string(key));
          ASSERT_EQ(packed.panel.scale[lane], keys.scales[static_cast<std::size_t>(key)]);
          if (HasFatalFailure()) return;
        }
        for (int lane = count; lane < kernels.panel_keys; ++lane) {
          ASSERT_EQ(packed.panel.scale[lane], 0.0F);
          ASSERT_EQ(packed.panel.residual[lane], 0.0F);
          for (int f = 0; f < packed.panel.feature_count; ++f)
            ASSERT_EQ(packed.panel.features[f * kernels.panel_keys + lane], 0.0F);
          for (const int i : stored(packed.panel, lane).integers) ASSERT_EQ(i, 0);
        }
        // With room for both kinds of forms, and packed for both: only norms differ, those of wide forms are tighter.
        Packed both(kernels, keys.source(), list, 17, count, {model, nullptr, true, true});
        const auto size = static_cast<std::size_t>(64 * kernels.panel_keys * ((d + 63) / 64));
        ASSERT_EQ(std::memcmp(both.panel.narrow, packed.panel.narrow, size), 0);
        ASSERT_EQ(std::memcmp(both.panel.step, packed.panel.step, 4U * static_cast<unsigned>(kernels.panel_keys)), 0);
        ASSERT_EQ(
            std::memcmp(both.panel.residual, packed.panel.residual, 4U * static_cast<unsigned>(kernels.panel_keys)), 0);
        Packed alone(kernels, keys.source(), list, 17, count, {model, nullptr, false, true});
        ASSERT_EQ(narrow_bits(alone.panel, kernels.panel_keys), narrow_bits(packed.panel, kernels.panel_keys));
      }
    }
  }
}

/// Every subnormal beside every largest exponent, at every lane's own size.
TEST_P(NarrowTest, EverySubnormalIsRightBesideEveryExponent) {
  constexpr int kDim = 32;
  for (int m = 0; m < 8; ++m) {
    for (int from = 0; from < 128; from += kernels.panel_keys) {
      Keys keys(kernels.panel_keys, kDim);
      std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
      for (int k = 0; k < kernels.panel_keys; ++k) {
        std::fill_n(keys.key(k), kDim, static_cast<std::uint8_t>(m | (k % 2 == 0 ? 0x80 : 0)));
        keys.key(k)[(k + m) % kDim] = static_cast<std::uint8_t>(std::min(from + k, 0x7e));
      }
      const NarrowPacked packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, ScoreModel::f64);
      for (int k = 0; k < kernels.panel_keys; ++k) {
        expect_valid(packed.panel, k, keys.key(k),
                     "mantissa " + std::to_string(m) + " largest " + std::to_string(from + k));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Codes as keys of a trace have them lose little.
TEST_P(NarrowTest, NormsOfUsualKeysAreTight) {
  Random random(42);
  Keys keys(kernels.panel_keys, 128);
  for (std::uint8_t& code : keys.storage)
    code = static_cast<std::uint8_t>(0x28 + random() % 0x40) | static_cast<std::uint8_t>(random() & 0x80U);
  const NarrowPacked packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, ScoreModel::sm90);
  for (int k = 0; k < kernels.panel_keys; ++k) {
    const Norms exact = norms(keys.key(k), stored(packed.panel, k));
    EXPECT_LE(static_cast<double>(packed.panel.features[k]), std::sqrt(exact.square) * 1.02);
    EXPECT_LE(static_cast<double>(packed.panel.residual[k]), std::sqrt(exact.square) * 0.01);
  }
}

/// The formula of kernels.hpp, exactly. Factors are multiples of 2^-16 below 2^8.
struct ExactNarrow {
  double sum = 0, magnitude = 0;
};
ExactNarrow exact_narrow(NarrowRows& rows, const std::vector<int>& key, float floor) {
  const auto dot = [&](int row) {
    std::int64_t sum = 0;
    for (int d = 0; d < rows.head_dim; ++d) sum += std::int64_t{rows.row(row)[d]} * key[static_cast<std::size_t>(d)];
    return static_cast<double>(sum);
  };
  ExactNarrow exact;
  for (int j = 0; j < rows.relu; ++j) {
    const double term = static_cast<double>(rows.factors[static_cast<std::size_t>(j)]) * std::max(0.0, dot(j));
    exact.sum += term;
    exact.magnitude += std::fabs(term);
  }
  auto largest = static_cast<double>(rows.aggregates > 0 ? floor : 0.0F);
  for (int a = 0; a < rows.aggregates; ++a) {
    const double high = dot(rows.relu + 2 * a), low = dot(rows.relu + 2 * a + 1);
    const double term = static_cast<double>(rows.factors[static_cast<std::size_t>(rows.relu + a)]) * (128 * high + low);
    exact.magnitude += std::fabs(term);
    largest = std::max(largest, term);
  }
  exact.sum -= largest;
  return exact;
}

/// With what T7 charges for the epilogue as only allowance a bound is not below the formula's value, and hardly above.
TEST_P(NarrowTest, BoundsAreTheFormulaWithinTheStatedErrors) {
  Random random(43);
  for (int repeat = 0; repeat < 240; ++repeat) {
    const int d = 32 * (1 + repeat % 8);
    const int aggregates = static_cast<int>(random() % 5), relu = static_cast<int>(random() % 51);
    const ScoreModel model = repeat % 3 == 0 ? ScoreModel::sm90 : ScoreModel::f64;
    Keys keys(kernels.panel_keys, d);
    fill_hard(keys, random);
    const int count = repeat % 4 == 0 ? 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys))
                                      : kernels.panel_keys;
    const NarrowPacked packed(kernels, keys.source(), nullptr, 0, count, model);
    NarrowRows rows(relu, aggregates, d);
    fill(rows, random);
    FormSpec spec = rows.spec();
    spec.aggregate_floor = aggregates > 0 && repeat % 2 == 0 ? -kInfinity : 0.0F;
    spec.constant = 3.0F;
    spec.allow_residual = static_cast<float>(random() % 100) * 0.01F;
    for (int f = 0; f < feature_count(model, d); ++f)
      spec.allow[f] = f == kCentred ? 0 : static_cast<float>(random() % 100) * 0.01F;
    if (repeat % 5 == 0) spec.scale_limit = 8.0F;
    const Made made(kernels, spec, model);
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(kernels.panel_keys);
    Buffer bounds(bytes), low_bounds(bytes), high_bounds(bytes);
    auto* const upper = reinterpret_cast<float*>(bounds.data);
    auto* const lower = reinterpret_cast<float*>(low_bounds.data);
    kernels.upper(made.form, packed.panel, upper);
    if (aggregates == 0) {
      kernels.bounds(made.form, packed.panel, lower, reinterpret_cast<float*>(high_bounds.data));
      ASSERT_EQ(std::memcmp(upper, high_bounds.data, sizeof(float) * static_cast<std::size_t>(count)), 0);
    }
    ASSERT_TRUE(bounds.intact() && low_bounds.intact() && high_bounds.intact());
    const double rounding = (relu + aggregates + feature_count(model, d) + 2 * aggregates + 15) * 0x1p-23;
    for (int k = 0; k < count; ++k) {
      const float scale = keys.scales[static_cast<std::size_t>(k)];
      if (!(scale <= spec.scale_limit)) {
        ASSERT_EQ(upper[k], kInfinity);
        if (aggregates == 0) {
          ASSERT_EQ(lower[k], -kInfinity);
        }
        continue;
      }
      const Stored key = stored(packed.panel, k);
      const ExactNarrow exact = exact_narrow(rows, key.integers, spec.aggregate_floor);
      double allowance = 3.0 + static_cast<double>(spec.allow_residual) * key.residual;
      for (int f = 0; f < packed.panel.feature_count; ++f)
        allowance +=
            static_cast<double>(spec.allow[f]) * static_cast<double>(packed.panel.features[f * kernels.panel_keys + k]);
      const double s = static_cast<double>(scale), want = s * (key.step * exact.sum + allowance);
      const double slack = s * rounding * (key.step * exact.magnitude + allowance);
      ASSERT_GE(static_cast<double>(upper[k]), want - slack)
          << "D " << d << " rows " << relu << "+" << aggregates << " key " << k;
      ASSERT_LE(static_cast<double>(upper[k]), want + slack + std::fabs(want) * 0x1p-20 + 0x1p-140)
          << "D " << d << " rows " << relu << "+" << aggregates << " key " << k;
      if (aggregates > 0) continue;
      const double least = s * (key.step * exact.sum - allowance);
      ASSERT_LE(static_cast<double>(lower[k]), least + slack) << "D " << d << " rows " << relu << " key " << k;
      ASSERT_GE(static_cast<double>(lower[k]), least - slack - std::fabs(least) * 0x1p-20 - 0x1p-140)
          << "D " << d << " rows " << relu << " key " << k;
    }
  }
}

/// Rows and factors small enough that F32 holds every sum: nothing but the last operations is left to round.
TEST_P(NarrowTest, SmallIntegersAreTheFormulaBitForBit) {
  Random random(44);
  for (int relu = 0; relu <= 50; ++relu) {
    for (int aggregates = 0; aggregates <= 4; ++aggregates) {
      const int d = 32 * (1 + static_cast<int>(random() % 8));
      Keys keys(kernels.panel_keys, d);
      fill(keys, random, true);
      const NarrowPacked packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, ScoreModel::f64);
      NarrowRows rows(relu, aggregates, d);
      for (int j = 0; j < relu + 2 * aggregates; ++j) {
        for (int i = 0; i < 16; ++i)
          rows.row(j)[random() % static_cast<unsigned>(d)] =
              static_cast<std::int8_t>(static_cast<int>(random() % 15) - 7);
      }
      for (int j = 0; j < relu; ++j) rows.factors[static_cast<std::size_t>(j)] = static_cast<float>(random() % 15) - 7;
      for (int a = 0; a < aggregates; ++a) rows.factors[static_cast<std::size_t>(relu + a)] = 1;
      FormSpec spec = rows.spec();
      spec.aggregate_floor = aggregates > 0 && random() % 2 == 0 ? -kInfinity : 0.0F;
      const Made made(kernels, spec, ScoreModel::f64);
      std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower = upper;
      kernels.upper(made.form, packed.panel, upper.data());
      if (aggregates == 0) kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
      for (int k = 0; k < kernels.panel_keys; ++k) {
        const Stored key = stored(packed.panel, k);
        const auto exact = static_cast<float>(key.step * exact_narrow(rows, key.integers, spec.aggregate_floor).sum);
        // With aggregates the constant is raised to 2^-100, which only a sum of zero shows.
        const float sum = exact == 0 && aggregates > 0 ? 0x1p-100F : exact;
        ASSERT_NEAR(upper[static_cast<std::size_t>(k)], up(keys.scales[static_cast<std::size_t>(k)] * sum), 0x1p-98F)
            << "D " << d << " rows " << relu << "+" << aggregates << " key " << k;
        if (sum == exact) {
          ASSERT_EQ(upper[static_cast<std::size_t>(k)], up(keys.scales[static_cast<std::size_t>(k)] * sum))
              << "D " << d << " rows " << relu << "+" << aggregates << " key " << k;
        }
        if (aggregates == 0) {
          ASSERT_EQ(lower[static_cast<std::size_t>(k)], down(keys.scales[static_cast<std::size_t>(k)] * exact))
              << "D " << d << " rows " << relu << " key " << k;
        }
      }
    }
  }
}

TEST_P(NarrowTest, KeysThatNoBoundMaySpeakOfAreUnbounded) {
  Random random(45);
  const float poisons[] = {kNan, -kNan, kInfinity, -kInfinity, -0x1p-149F, -1.0F};
  for (int repeat = 0; repeat < 400; ++repeat) {
    const int d = 32 * (1 + repeat / 8 % 8);
    Keys keys(kernels.panel_keys, d);
    fill_hard(keys, random);
    std::fill(keys.scales.begin(), keys.scales.end(), 1.0F);
    const auto poisoned = static_cast<std::size_t>(random() % static_cast<unsigned>(kernels.panel_keys));
    NarrowRows rows(static_cast<int>(random() % 20), static_cast<int>(random() % 3), d);
    fill(rows, random);
    FormSpec spec = rows.spec();
    if (repeat % 8 < 6) {
      keys.scales[poisoned] = poisons[repeat % 8];
    } else if (repeat % 8 == 6) {
      keys.key(static_cast<std::int64_t>(poisoned))[random() % static_cast<unsigned>(d)] =
          random() % 2 == 0 ? 0x7f : 0xff;
    } else {
      spec.scale_limit = 64.0F;
      keys.scales[poisoned] = std::nextafter(64.0F, 65.0F);
      keys.scales[(poisoned + 1) % keys.scales.size()] = 64.0F;
    }
    const Made made(kernels, spec, ScoreModel::f64);
    const NarrowPacked packed(kernels, keys.source(), nullptr, 0, kernels.panel_keys, ScoreModel::f64);
    std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys)), lower = upper;
    kernels.upper(made.form, packed.panel, upper.data());
    if (spec.aggregate_rows == 0) kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
    for (std::size_t k = 0; k < upper.size(); ++k) {
      ASSERT_FALSE(std::isnan(upper[k]) || std::isnan(lower[k])) << repeat;
      ASSERT_EQ(upper[k] == kInfinity, k == poisoned) << repeat << ' ' << k;
      if (spec.aggregate_rows == 0) {
        ASSERT_EQ(lower[k] == -kInfinity, k == poisoned) << repeat << ' ' << k;
      }
    }
  }
}

TEST_P(NarrowTest, OverflowIsNeverABound) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  Keys keys(2, 128);
  std::fill_n(keys.key(0), 128, std::uint8_t{0x7e});
  std::fill_n(keys.key(1), 128, std::uint8_t{0x38});
  for (const float scale : {1.0F, 0.0F, kHuge}) {
    keys.scales = {scale, scale};
    const NarrowPacked packed(kernels, keys.source(), nullptr, 0, 2, ScoreModel::f64);
    std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys));
    for (const float first : {kHuge, -kHuge}) {
      for (const float second : {kHuge, -kHuge, 1.0F}) {
        NarrowRows rows(2, 0, 128);
        std::fill(rows.rows.begin(), rows.rows.end(), std::int8_t{120});
        rows.factors = {first, second};
        const Made made(kernels, rows.spec(), ScoreModel::f64);
        kernels.upper(made.form, packed.panel, upper.data());
        EXPECT_EQ(upper[0], kInfinity) << first << ' ' << second << ' ' << scale;
        EXPECT_EQ(upper[1], kInfinity) << first << ' ' << second << ' ' << scale;
        std::vector<float> lower(upper.size());
        kernels.bounds(made.form, packed.panel, lower.data(), upper.data());
        for (int k = 0; k < 2; ++k) {
          EXPECT_EQ(upper[static_cast<std::size_t>(k)], kInfinity) << first << ' ' << second << ' ' << scale;
          EXPECT_EQ(lower[static_cast<std::size_t>(k)], -kInfinity) << first << ' ' << second << ' ' << scale;
        }
      }
    }
  }
}

/// Strides, offsets, index lists and pages change where keys come from, never what is stored.
TEST_P(NarrowTest, EveryWayToAddressKeysPacksTheSamePanel) {
  Random random(46);
  for (int d = 32; d <= 256; d += 32) {
    constexpr int kCount = 400;
    Keys plain(kCount, d);
    fill_hard(plain, random);
    for (int repeat = 0; repeat < 6; ++repeat) {
      const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(kernels.panel_keys));
      std::vector<std::int32_t> index(static_cast<std::size_t>(count));
      for (std::int32_t& i : index) i = static_cast<std::int32_t>(random() % kCount);
      Keys gathered(count, d);
      for (int i = 0; i < count; ++i) {
        std::memcpy(gathered.key(i), plain.key(index[static_cast<std::size_t>(i)]), static_cast<std::size_t>(d));
        gathered.scales[static_cast<std::size_t>(i)] =
            plain.scales[static_cast<std::size_t>(index[static_cast<std::size_t>(i)])];
      }
      const auto bits = [&](const KeySource& source, const std::int32_t* list) {
        const NarrowPacked packed(kernels, source, list, 0, count, ScoreModel::sm90);
        return narrow_bits(packed.panel, kernels.panel_keys);
      };
      const auto want = bits(gathered.source(), nullptr);
      EXPECT_EQ(bits(plain.source(), index.data()), want);
      Keys strided(kCount, d, 1 + static_cast<std::int64_t>(random() % 70), static_cast<std::int64_t>(random() % 64));
      for (int i = 0; i < kCount; ++i) std::memcpy(strided.key(i), plain.key(i), static_cast<std::size_t>(d));
      strided.scales = plain.scales;
      EXPECT_EQ(bits(strided.source(), index.data()), want);
      const Pages pages(plain, static_cast<int>(random() % 9), 4 * static_cast<std::int64_t>(random() % 9));
      EXPECT_EQ(bits(pages.source(), index.data()), want);
      // A page outside the cache: its keys are unbounded.
      const std::int64_t broken = index[0] / pages.page_size;
      const NarrowPacked partly(kernels, pages.source_without(broken, repeat % 2 == 0), index.data(), 0, count,
                                ScoreModel::sm90);
      NarrowRows rows(1, 0, d);
      const Made made(kernels, rows.spec(), ScoreModel::sm90);
      std::vector<float> upper(static_cast<std::size_t>(kernels.panel_keys));
      kernels.upper(made.form, partly.panel, upper.data());
      for (int i = 0; i < count; ++i) {
        const bool missing = index[static_cast<std::size_t>(i)] / pages.page_size == broken;
        EXPECT_EQ(upper[static_cast<std::size_t>(i)], missing ? kInfinity : 0x1p-145F);
      }
    }
  }
}

TEST_P(KernelsTest, ThresholdsKeepWhatIsNotBelow) {
  Random random(11);
  const float special[] = {0.0F, -0.0F, kNan, kInfinity, -kInfinity, 1.0F, std::nextafter(1.0F, 0.0F), -1.0F};
  for (int count = 0; count < 200; ++count) {
    std::vector<float> values(static_cast<std::size_t>(count)), lower = values;
    for (float& v : values) v = special[random() % 8];
    for (std::size_t i = 0; i < lower.size(); ++i) lower[i] = count % 2 == 0 ? values[i] : special[random() % 8];
    for (const float low : special) {
      std::int64_t from_low = 0;
      for (const float v : values) from_low += v < low ? 0 : 1;
      EXPECT_EQ(kernels.count_not_below(values.data(), count, low), from_low);
      for (const float high : special) {
        std::vector<std::int32_t> want;
        for (int i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (!(values[at] < low) && !(lower[at] >= high)) want.push_back(i);
        }
        Buffer out(sizeof(std::int32_t) * static_cast<std::size_t>(count + 16));
        auto* positions = reinterpret_cast<std::int32_t*>(out.data);
        ASSERT_EQ(kernels.positions_between(lower.data(), values.data(), count, low, high, positions),
                  static_cast<std::int64_t>(want.size()));
        EXPECT_TRUE(out.intact());
        EXPECT_EQ(std::vector<std::int32_t>(positions, positions + want.size()), want);
      }
    }
  }
}

TEST_P(KernelsTest, ValuesBetweenAreCopiedInOrder) {
  Random random(13);
  const float special[] = {0.0F, -0.0F, kNan, kInfinity, -kInfinity, 1.0F, std::nextafter(1.0F, 0.0F), -1.0F};
  for (int count = 0; count < 80; ++count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = special[random() % 8];
    for (const float low : special) {
      for (const float high : special) {
        std::vector<float> want;
        for (const float v : values) {
          if (!(v < low) && v < high) want.push_back(v);
        }
        Buffer apart(sizeof(float) * static_cast<std::size_t>(count + 16)), in_place(apart.size);
        if (count > 0) std::memcpy(in_place.data, values.data(), values.size() * sizeof(float));
        const auto check = [&](const float* from, Buffer& to) {
          auto* const out = reinterpret_cast<float*>(to.data);
          ASSERT_EQ(kernels.values_between(from, count, low, high, out), static_cast<std::int64_t>(want.size()));
          EXPECT_TRUE(to.intact());
          EXPECT_TRUE(want.empty() || std::memcmp(out, want.data(), want.size() * sizeof(float)) == 0);
        };
        check(values.data(), apart);
        check(reinterpret_cast<const float*>(in_place.data), in_place);
      }
    }
  }
}

/// Values, sums and dot products of heads are exact, any code, any dimension, any alignment.
TEST_P(KernelsTest, HeadsAreReadExactly) {
  Random random(14);
  for (int dim = 32; dim <= 256; dim += 32) {
    for (int round = 0; round < 12; ++round) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(2 * dim + 1));
      for (std::uint8_t& code : codes) code = round == 0 ? 0xfe : random_code(random, round % 3 == 1);
      std::vector<float> head[2] = {std::vector<float>(static_cast<std::size_t>(dim)), {}};
      head[1] = head[0];
      for (int h = 0; h < 2; ++h) {
        const std::uint8_t* const from = codes.data() + 1 + h * dim;
        double absolute = 0, square = 0, want_absolute = 0, want_square = 0;
        EXPECT_FALSE(kernels.loops.read_head(from, dim, head[h].data(), &absolute, &square));
        for (int d = 0; d < dim; ++d) {
          ASSERT_EQ(static_cast<double>(head[h][static_cast<std::size_t>(d)]), value(from[d]));
          want_absolute += std::fabs(value(from[d]));
          want_square += value(from[d]) * value(from[d]);
        }
        EXPECT_EQ(absolute, want_absolute);
        EXPECT_EQ(square, want_square);
      }
      double want = 0;
      for (int d = 0; d < dim; ++d)
        want += value(codes[1 + static_cast<std::size_t>(d)]) * value(codes[static_cast<std::size_t>(1 + dim + d)]);
      EXPECT_EQ(kernels.loops.exact_dot(head[0].data(), head[1].data(), dim), want);
      codes[1 + random() % static_cast<unsigned>(dim)] = round % 2 == 0 ? 0x7f : 0xff;
      double unused[2];
      EXPECT_TRUE(kernels.loops.read_head(codes.data() + 1, dim, head[0].data(), &unused[0], &unused[1]));
    }
  }
}

/// Of small integers exactly, of E4M3 values within what is said; memory ends behind the last vector and weight.
TEST_P(KernelsTest, SumsOfAllPairsOfVectors) {
  Random random(16);
  for (int dim = 32; dim <= 256; dim += 32) {
    for (int count = 0; count <= 35; count += count < 10 ? 1 : 5) {
      for (const bool small : {true, false}) {
        const std::size_t numbers = static_cast<std::size_t>(count * dim);
        Buffer vectors(std::max<std::size_t>(1, numbers * sizeof(float))),
            weights(std::max<std::size_t>(1, static_cast<std::size_t>(count) * sizeof(float)));
        auto* const v = reinterpret_cast<float*>(vectors.data);
        auto* const w = reinterpret_cast<float*>(weights.data);
        for (std::size_t i = 0; i < numbers; ++i)
          v[i] = small ? static_cast<float>(random() % 15) - 7 : static_cast<float>(value(random_code(random, true)));
        for (int j = 0; j < count; ++j) w[j] = (static_cast<float>(random() % 31) - 15) * (small ? 1.0F : 0x1p100F);
        double want = 0, sizes = 0;
        for (int j = 0; j < count; ++j) {
          double own = 0;
          for (int l = 0; l < count; ++l) {
            double dot = 0;
            for (int d = 0; d < dim; ++d)
              dot += static_cast<double>(v[j * dim + d]) * static_cast<double>(v[l * dim + d]);
            want += std::fabs(static_cast<double>(w[j]) * static_cast<double>(w[l]) * dot);
            if (l == j) own = dot;
          }
          sizes += std::fabs(static_cast<double>(w[j])) * std::sqrt(own);
        }
        const double got = kernels.loops.joint_square(v, w, count, dim);
        ASSERT_NEAR(got, want, small ? 0 : 0x1p-15 * sizes * sizes) << dim << ' ' << count;
        ASSERT_TRUE(vectors.intact() && weights.intact());
      }
    }
  }
}

/// Small integers, which F32 adds exactly in any order; every count up to 70.
TEST_P(KernelsTest, SampleLoopsAddAndWeigh) {
  Random random(15);
  const auto draw = [&](int count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = static_cast<float>(random() % 33) - 16;
    return values;
  };
  for (int count = 0; count <= 70; ++count) {
    const std::vector<float> dots = draw(count), start = draw(count);
    std::vector<float> relu = start, plain = start;
    kernels.loops.add_relu(relu.data(), dots.data(), -3, count);
    kernels.loops.add(plain.data(), dots.data(), -3, count);
    float weighted = 0;
    for (std::size_t s = 0; s < dots.size(); ++s) {
      EXPECT_EQ(relu[s], start[s] - 3 * std::max(dots[s], 0.0F));
      EXPECT_EQ(plain[s], start[s] - 3 * dots[s]);
      weighted += dots[s] * start[s];
    }
    EXPECT_EQ(kernels.loops.weighted_sum(dots.data(), start.data(), count), weighted);
  }
}

/// A key counts by where its bound lies in the band about its threshold; ties and keys without a bound count in full.
TEST_P(KernelsTest, SurvivorsCountByTheirPlaceInTheBand) {
  Random random(16);
  struct Case {
    float bound, aggregate, threshold, inverse, want;
  };
  const Case cases[] = {{1, 0, 5, 0.125F, 0},      {5, 0, 5, 0.125F, 1},  // a tie
                        {7, 1, 5, 0.125F, 0.625F}, {4, 0, 5, 0.125F, 0.375F}, {99, 1, 5, 0.125F, 1},
                        {kNan, 0, 5, 1, 1},        {0, 0, -kInfinity, 1, 1},  {0, 0, kInfinity, 1, 0}};
  for (int count = 0; count <= 70; ++count) {
    std::vector<float> bound, aggregate, threshold, inverse;
    float want = 0;
    for (int s = 0; s < count; ++s) {
      const Case& next = cases[random() % 8];
      bound.push_back(next.bound);
      aggregate.push_back(next.aggregate);
      threshold.push_back(next.threshold);
      inverse.push_back(next.inverse);
      want += next.want;
    }
    EXPECT_EQ(kernels.loops.survivors({bound.data(), threshold.data(), inverse.data()}, aggregate.data(), count), want);
  }
}

/// Every count up to 80 and every mix of special values, with and without keys and lower bounds, into other arrays and
/// in place; no entry past the last one kept is written.
TEST_P(KernelsTest, CandidatesAreKeptInOrder) {
  Random random(12);
  const float special[] = {0.0F, -0.0F, kNan, kInfinity, -kInfinity, 1.0F, std::nextafter(1.0F, 0.0F), -1.0F};
  for (int count = 0; count < 80; ++count) {
    for (int kind = 0; kind < 8; ++kind) {
      const bool with_keys = (kind & 1) != 0, with_lower = (kind & 2) != 0, in_place = (kind & 4) != 0;
      const auto n = static_cast<std::size_t>(count);
      std::vector<std::int32_t> key(n);
      std::vector<float> lower(n), upper(n);
      for (std::size_t i = 0; i < n; ++i) {
        key[i] = static_cast<std::int32_t>(3 * i + 7);
        lower[i] = static_cast<float>(i);
        upper[i] = special[random() % 8];
      }
      const float floor = special[random() % 8];
      std::vector<std::size_t> kept;
      for (std::size_t i = 0; i < n; ++i) {
        if (!(upper[i] < floor)) kept.push_back(i);
      }
      Buffer key_buffer(4 * (n + 1)), lower_buffer(4 * (n + 1)), upper_buffer(4 * (n + 1));
      const Candidates to{reinterpret_cast<std::int32_t*>(key_buffer.data), reinterpret_cast<float*>(lower_buffer.data),
                          reinterpret_cast<float*>(upper_buffer.data)};
      if (in_place) {
        std::copy(key.begin(), key.end(), to.key);
        std::copy(lower.begin(), lower.end(), to.lower);
        std::copy(upper.begin(), upper.end(), to.upper);
      } else {
        std::fill_n(to.key, n + 1, -5);
        std::fill_n(to.lower, n + 1, -5.0F);
        std::fill_n(to.upper, n + 1, -5.0F);
      }
      Candidates from = to;
      if (!in_place) from = {key.data(), lower.data(), upper.data()};
      if (!with_keys) from.key = nullptr;
      if (!with_lower) from.lower = nullptr;
      ASSERT_EQ(kernels.keep_not_below(from, count, floor, 1000, to), static_cast<std::int64_t>(kept.size()));
      EXPECT_TRUE(key_buffer.intact() && lower_buffer.intact() && upper_buffer.intact());
      for (std::size_t j = 0; j < kept.size(); ++j) {
        EXPECT_EQ(to.key[j], with_keys ? key[kept[j]] : 1000 + static_cast<std::int32_t>(kept[j]));
        EXPECT_EQ(std::memcmp(&to.upper[j], &upper[kept[j]], sizeof(float)), 0);
        if (with_lower) {
          EXPECT_EQ(to.lower[j], lower[kept[j]]);
        }
      }
      for (std::size_t j = kept.size(); j < n + 1 && !in_place; ++j) EXPECT_EQ(to.key[j], -5) << "written past the end";
      for (std::size_t j = with_lower ? kept.size() : 0; j < n + 1 && !in_place; ++j) EXPECT_EQ(to.lower[j], -5.0F);
    }
  }
}

}  // namespace
}  // namespace dosa::cpu
