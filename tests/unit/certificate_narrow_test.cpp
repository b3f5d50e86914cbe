// T11 against exact arithmetic: what rows lose as integers of a byte, and that it covers any key of integers and a
// rest.
#include <gtest/gtest.h>

#include "certificate/narrow.hpp"
#include "property/certificate_cases.hpp"

namespace dosa::test {
namespace {

using certificate::NarrowAllowance;
using certificate::RealBound;
using certificate::RowFacts;
using Vector = std::vector<Real>;

Real dot(const Vector& a, const Vector& b) {
  Real sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}
Real norm(const Vector& a) { return sqrt(dot(a, a)); }
Vector scaled(const Vector& a, const Real& by) {
  Vector b = a;
  for (Real& x : b) x *= by;
  return b;
}
Vector sum(const Vector& a, const Vector& b) {
  Vector c = a;
  for (std::size_t d = 0; d < a.size(); ++d) c[d] += b[d];
  return c;
}

/// A bound and its rows, as make_form hands them over and as narrow_form leaves them.
struct Narrowed {
  Case c;
  RowFacts facts;
  RealBound bound;
  std::vector<float> values, rows, coef, factors;
  std::vector<std::int8_t> integers;
  NarrowAllowance allowance;
  std::vector<Vector> wide, narrow;  ///< relu rows (without coefficients), then aggregates

  explicit Narrowed(Random& random) : c(some_case(random, ScoreModel::f64)) {
    const auto h = static_cast<std::size_t>(c.heads), d = static_cast<std::size_t>(c.dim);
    values.resize(h * d);
    rows.resize((h + 4) * d);
    coef.resize(h);
    factors.resize(h + 4);
    integers.resize((h + 4) * d);
    certificate::read_row(c.row(), c.model, cpu::portable_kernels()->loops, values.data(), facts);
    bound.retained = below(random, c.heads + 1);
    for (int j = 0; j < bound.retained; ++j) {
      bound.head[j] = (j * 5 + c.retained) % c.heads;
      bound.coef[j] = facts.weight[bound.head[j]];
    }
    bound.aggregates = below(random, certificate::kMaxAggregates + 1);
    for (int a = 0; a < bound.aggregates; ++a) {
      for (int i = 0; i < c.heads; ++i) bound.share[a][i] = below(random, 2) == 0 ? facts.weight[i] : 0;
    }
    bound.clamp = below(random, 2) == 0;
  }

  [[nodiscard]] certificate::NarrowTarget target() { return {integers.data(), factors.data()}; }
  [[nodiscard]] bool make(const certificate::NarrowTarget& to, cpu::FormSpec& spec) {
    certificate::ModelError model;
    model.finite = true;
    return certificate::make_form(bound, facts, model, scalar_arithmetic(c.dim), cpu::kModel, nullptr, values.data(),
                                  rows.data(), coef.data(), spec, to);
  }

  /// False where the row has no form, or none of integers.
  [[nodiscard]] bool run() {
    cpu::FormSpec spec;
    if (!facts.finite || !make({}, spec)) return false;
    const int stored = bound.retained + bound.aggregates;
    for (int j = 0; j < stored; ++j) {
      Vector row;
      for (int d = 0; d < c.dim; ++d) row.emplace_back(rows[static_cast<std::size_t>(j * c.dim + d)]);
      wide.push_back(std::move(row));
    }
    allowance = certificate::narrow_form(bound, facts, values.data(), coef.data(), cpu::portable_kernels()->loops,
                                         target(), rows.data());
    if (!allowance.fits) return false;
    for (int j = 0; j < stored; ++j) {
      Vector row;
      for (int d = 0; d < c.dim; ++d) {
        const auto at = [&](int number) { return int{integers[static_cast<std::size_t>(number * c.dim + d)]}; };
        if (j < bound.retained) {
          EXPECT_LE(std::abs(at(j)), 120);
          row.emplace_back(at(j));
        } else {
          const int high = j + (j - bound.retained);
          EXPECT_LE(std::abs(at(high)), 64);
          EXPECT_LE(std::abs(at(high + 1)), 64);
          row.emplace_back(128 * at(high) + at(high + 1));
        }
      }
      narrow.push_back(std::move(row));
    }
    return true;
  }

  /// What one integer of row j stands for.
  [[nodiscard]] Real step(int j) const {
    const auto at = static_cast<std::size_t>(j);
    if (j >= bound.retained) return Real(factors[at]);
    return coef[at] == 0 ? Real(0) : Real(factors[at]) / Real(coef[at]);
  }
  [[nodiscard]] Vector lost(int j) const {
    const auto at = static_cast<std::size_t>(j);
    return sum(wide[at], scaled(narrow[at], -step(j)));
  }
  /// sum over relu rows of c_j v_j, and sqrt(sum over pairs of |c_j c_l v_j . v_l|).
  [[nodiscard]] Vector total(const std::vector<Vector>& v) const {
    Vector all(static_cast<std::size_t>(c.dim), Real(0));
    for (int j = 0; j < bound.retained; ++j)
      all = sum(all, scaled(v[static_cast<std::size_t>(j)], Real(coef[static_cast<std::size_t>(j)])));
    return all;
  }
  [[nodiscard]] Real joint(const std::vector<Vector>& v) const {
    Real square = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(bound.retained); ++j) {
      for (std::size_t l = 0; l < static_cast<std::size_t>(bound.retained); ++l)
        square += abs(Real(coef[j]) * Real(coef[l]) * dot(v[j], v[l]));
    }
    return sqrt(square);
  }
  [[nodiscard]] bool zero_row() const { return bound.clamp || bound.aggregates == 0; }

  /// The form's value: of rows as they are (step 1), or of integers.
  [[nodiscard]] Real value(const std::vector<Vector>& form, const Vector& key, bool of_integers) const {
    Real found = 0, largest = 0;
    bool any = zero_row();
    for (int j = 0; j < bound.retained + bound.aggregates; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const Real x = dot(form[at], key) * (of_integers && j >= bound.retained ? step(j) : Real(1));
      if (j < bound.retained) {
        if (x > 0) found += x * Real(of_integers ? factors[at] : coef[at]);
      } else if (!any || x > largest) {
        largest = x;
        any = true;
      }
    }
    return found - largest;
  }
};

TEST(CertificateNarrow, AllowancesAreTheNormsOfWhatIsLost) {
  Random random(51);
  int made = 0;
  for (int trial = 0; trial < 150; ++trial) {
    Narrowed form(random);
    if (!form.run()) continue;
    ++made;
    std::vector<Vector> lost;
    Real magnitude = 0, error_sizes = 0;  // of an error's elements each is at most half a step
    for (int j = 0; j < form.bound.retained; ++j) {
      const auto at = static_cast<std::size_t>(j);
      lost.push_back(form.coef[at] == 0 ? Vector(form.wide[at].size(), Real(0)) : form.lost(j));
      magnitude += abs(Real(form.coef[at])) * norm(form.wide[at]);
      error_sizes += abs(Real(form.coef[at])) * form.step(j) / 2 * sqrt(Real(form.c.dim));
      // A power of two, and no larger than an eighth of the largest element needs it.
      if (form.coef[at] != 0) {
        int exponent = 0;
        ASSERT_EQ(std::frexp(static_cast<double>(form.step(j)), &exponent), 0.5);
      }
    }
    const Real sizes = magnitude;
    const Vector half = scaled(form.total(form.wide), Real(0.5));
    Real linear = form.zero_row() ? norm(half) : Real(0), aggregate_lost = 0;
    for (int a = 0; a < form.bound.aggregates; ++a) {
      const auto at = static_cast<std::size_t>(form.bound.retained + a);
      const Real difference = norm(sum(half, scaled(form.wide[at], Real(-1))));
      if (difference > linear) linear = difference;
      const Real left = norm(form.lost(form.bound.retained + a));
      if (left > aggregate_lost) aggregate_lost = left;
      magnitude += difference;
    }
    // All pairs' dot products are F32 sums: up to 2^-15 of the sizes away, and charged so.
    const auto f32 = [](const Real& joint, const Real& all) -> Real {
      return sqrt(joint * joint + all * all * 0x1p-14);
    };
    const Real errors = form.joint(lost), heads = form.joint(form.wide);
    const auto rows_with = [&](const Real& joint) -> Real {
      return (norm(form.total(lost)) + joint) / 2 + aggregate_lost;
    };
    const Real rows = rows_with(errors), most_rows = rows_with(f32(errors, error_sizes));
    const Real key = linear + heads / 2 + rows, most_key = linear + f32(heads, sizes) / 2 + most_rows;
    const auto expect_tight = [&](const Real& wanted, const Real& most, double found, const char* what) {
      EXPECT_TRUE(Real(found) >= wanted) << trial << ' ' << what << ": " << found << " < " << wanted;
      EXPECT_TRUE(Real(found) <= most * Real(1 + 1e-9) + magnitude * Real(0x1p-42))
          << trial << ' ' << what << ": " << found << " wastes over " << wanted;
    };
    expect_tight(rows, most_rows, form.allowance.norm, "rows");
    expect_tight(key, most_key, form.allowance.residual, "key");
  }
  EXPECT_GT(made, 80);
}

/// Any integers and any rest, the worst directions of both among them: the integers' value, with the allowances, is not
/// below the rows' value.
TEST(CertificateNarrow, AllowancesCoverEveryKey) {
  Random random(52);
  int checked = 0;
  double used_rows = 0, used_key = 0;  // largest shares of the allowances
  for (int trial = 0; trial < 120; ++trial) {
    Narrowed form(random);
    if (!form.run()) continue;
    const auto dim = static_cast<std::size_t>(form.c.dim);
    for (int kind = 0; kind < 8; ++kind) {
      // Directions in which single rows, or all with random signs, lose most.
      const auto worst = [&](bool of_rows) {
        Vector direction(dim, Real(0));
        for (int j = 0; j < form.bound.retained; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (form.coef[at] == 0 || below(random, 2) == 0) continue;
          direction = sum(direction, scaled(of_rows ? form.lost(j) : form.wide[at], Real(form.coef[at])));
        }
        if (form.bound.aggregates > 0 && below(random, 2) == 0) {
          const int row = form.bound.retained + below(random, form.bound.aggregates);
          direction =
              sum(direction, scaled(of_rows ? form.lost(row) : form.wide[static_cast<std::size_t>(row)], Real(-1)));
        }
        return direction;
      };
      // integers: random, or along what the rows lose.
      Vector integers;
      const Vector along = worst(true);
      Real largest = 1e-300;
      for (const Real& x : along) largest = abs(x) > largest ? Real(abs(x)) : largest;
      for (std::size_t d = 0; d < dim; ++d)
        integers.emplace_back(kind % 2 == 0 ? Real(below(random, 241) - 120) : Real(round(along[d] / largest * 120)));
      const Real step = std::ldexp(1.0, below(random, 15) - 12);
      Vector rest = worst(false);
      const Real length = norm(rest);
      if (kind >= 6) {
        rest.assign(dim, Real(0));  // nothing but what rows lose
      } else if (length > 0) {
        rest = scaled(rest, Real(unit(random) * 8) * step / length);
      }
      const Vector narrow_key = scaled(integers, step), key = sum(narrow_key, rest);
      const Real exact = form.value(form.wide, key, false), bound = form.value(form.narrow, narrow_key, true);
      const Real by_rows = Real(form.allowance.norm) * norm(key), by_key = Real(form.allowance.residual) * norm(rest);
      ASSERT_TRUE(bound + by_rows + by_key >= exact)
          << trial << ' ' << kind << ": " << bound << " + " << by_rows << " + " << by_key << " < " << exact << "\n"
          << to_json(form.c).dump();
      if (kind >= 6 && by_rows > 0) used_rows = std::max(used_rows, static_cast<double>((exact - bound) / by_rows));
      if (kind < 6 && by_key > 0)
        used_key = std::max(used_key, static_cast<double>((exact - bound - by_rows) / by_key));
      ++checked;
    }
  }
  EXPECT_GT(checked, 500);
  EXPECT_GT(used_rows, 0.5) << "or the directions are not the worst";
  EXPECT_GT(used_key, 0.5) << "or the directions are not the worst";
}

/// What make_form adds to them: the roundings of aggregate rows to F32, and of an epilogue over integers, whose rows
/// and keys may be an eighth larger than what they stand for.
TEST(CertificateNarrow, RoundingsAreChargedOnIntegers) {
  Random random(55);
  int made = 0;
  for (int trial = 0; trial < 100; ++trial) {
    Narrowed form(random);
    if (!form.run()) continue;
    ++made;
    const auto allowed = [&](const cpu::Arithmetic& arithmetic) {
      certificate::ModelError model;
      model.finite = true;
      cpu::FormSpec spec;
      EXPECT_TRUE(certificate::make_form(form.bound, form.facts, model, arithmetic, cpu::kModel, nullptr,
                                         form.values.data(), form.rows.data(), form.coef.data(), spec, form.target()));
      return Real(spec.allow[cpu::kNorm]);
    };
    const Real base = allowed({0, 0, 0});
    EXPECT_TRUE(base == allowed({0.5, 0.5, 0})) << "integers have no other errors";
    Real f32_error = 0, magnitude = 0, largest = 0;
    for (int j = 0; j < form.bound.retained; ++j)
      magnitude +=
          abs(Real(form.factors[static_cast<std::size_t>(j)])) * norm(form.narrow[static_cast<std::size_t>(j)]);
    for (int a = 0; a < form.bound.aggregates; ++a) {
      const auto at = static_cast<std::size_t>(form.bound.retained + a);
      Vector left = scaled(form.wide[at], Real(-1));
      for (int h = 0; h < form.c.heads; ++h) {
        for (int d = 0; d < form.c.dim; ++d)
          left[static_cast<std::size_t>(d)] +=
              Real(form.bound.share[a][h]) * Real(form.values[static_cast<std::size_t>(h * form.c.dim + d)]);
      }
      if (norm(left) > f32_error) f32_error = norm(left);
      const Real row = norm(form.narrow[at]) * form.step(form.bound.retained + a);
      if (row > largest) largest = row;
    }
    EXPECT_TRUE(base >= Real(form.allowance.norm) + f32_error - form.allowance.norm * Real(0x1p-45)) << trial;
    constexpr double kEpsilon = 0x1p-20;
    const int operations = form.bound.retained + 3 * form.bound.aggregates + cpu::kModel + 15;
    const Real charged = allowed({0, 0, kEpsilon}) - base;
    EXPECT_TRUE(charged >= Real(operations * kEpsilon * 1.125) * (magnitude + largest) * Real(1 - 1e-5)) << trial;
  }
  EXPECT_GT(made, 50);
}

/// Where a factor is no F32 number, or would be next to the range's ends, the form stays as wide as it is without a
/// target.
TEST(CertificateNarrow, FactorsBeyondTheRangeLeaveTheFormWide) {
  Random random(53);
  int fell_back = 0, narrow = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const std::uint64_t seed = random();
    Random first(seed), second(seed);
    Narrowed a(first), b(second);
    if (!a.facts.finite || a.bound.retained == 0) continue;
    const int exponents[] = {-149, -140, -126, -119, -116, 100, 112, 116, 118};
    const double size = std::ldexp(1 + unit(random), exponents[trial % 9]);
    a.bound.coef[0] = b.bound.coef[0] = size;
    cpu::FormSpec wide, tried;
    const bool finite = a.make({}, wide);
    ASSERT_TRUE(!b.make(b.target(), tried) || finite) << "a narrow form of a row that has no wide one";
    if (!finite) continue;
    if (tried.narrow != nullptr) {
      for (int j = 0; j < b.bound.retained + b.bound.aggregates; ++j) {
        const float factor = std::fabs(b.factors[static_cast<std::size_t>(j)]);
        EXPECT_TRUE(factor == 0 || (factor >= 0x1p-120F && factor <= 0x1p120F)) << factor;
      }
      ++narrow;
      continue;
    }
    ++fell_back;
    EXPECT_EQ(tried.allow_residual, 0.0F);
    EXPECT_EQ(tried.constant, wide.constant);
    EXPECT_EQ(std::memcmp(tried.allow, wide.allow, sizeof wide.allow), 0);
    const auto stored = static_cast<std::size_t>((a.bound.retained + a.bound.aggregates) * a.c.dim);
    EXPECT_EQ(std::memcmp(a.rows.data(), b.rows.data(), stored * sizeof(float)), 0);
  }
  EXPECT_GT(fell_back, 30);
  EXPECT_GT(narrow, 30);
}

TEST(CertificateNarrow, CanBeSwitchedOff) {
  Random random(54);
  int narrow = 0;
  for (int trial = 0; trial < 50; ++trial) {
    Case c = some_case(random, ScoreModel::f64);
    c.dense = false;
    c.narrow = true;
    narrow += build(c, scalar_arithmetic(c.dim)).spec.narrow != nullptr ? 1 : 0;
    c.ablation.narrow = false;
    const BuiltForm off = build(c, scalar_arithmetic(c.dim));
    EXPECT_EQ(off.spec.narrow, nullptr);
    EXPECT_EQ(off.spec.allow_residual, 0.0F);
    c.narrow = false;
    const BuiltForm wide = build(c, scalar_arithmetic(c.dim));
    EXPECT_EQ(off.finite, wide.finite);
    if (wide.finite) {
      EXPECT_EQ(std::memcmp(off.spec.allow, wide.spec.allow, sizeof wide.spec.allow), 0);
    }
  }
  EXPECT_GT(narrow, 25);
}

}  // namespace
}  // namespace dosa::test
