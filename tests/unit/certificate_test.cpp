// The pieces of the certificate against exact arithmetic: every constant is at least the real number that its theorem
// asks for (docs/certificate.md), and not wastefully more.
#include <gtest/gtest.h>

#include "property/certificate_kernels.hpp"

namespace dosa::test {
namespace {

using certificate::Gram;
using certificate::ModelError;
using certificate::Projection;
using certificate::RealBound;
using certificate::RowFacts;

struct DecodedRow {
  Case c;
  RowFacts facts;
  std::vector<float> values;

  explicit DecodedRow(Case from) : c(std::move(from)), values(static_cast<std::size_t>(c.heads * c.dim)) {
    certificate::read_row(c.row(), c.model, cpu::portable_kernels()->loops, values.data(), facts);
  }
  [[nodiscard]] Real q(int h, int d) const { return Real(values[static_cast<std::size_t>(h * c.dim + d)]); }
  [[nodiscard]] Real dot(int a, int b, int dims) const {
    Real sum = 0;
    for (int d = 0; d < dims; ++d) sum += q(a, d) * q(b, d);
    return sum;
  }
};

Case positives(Random& random, int heads, int dim, ScoreModel model = ScoreModel::f64) {
  Case c;
  c.model = model;
  c.heads = heads;
  c.dim = dim;
  c.retained = heads;
  for (int i = 0; i < heads * dim; ++i) c.q.push_back(nearest_code(normal(random) * 100));
  for (int d = 0; d < dim; ++d) c.key.push_back(nearest_code(normal(random) * 100));
  for (int h = 0; h < heads; ++h) c.weights.push_back(static_cast<float>(std::fabs(normal(random)) + 0.01));
  return c;
}

void expect_tight(const Real& wanted, double found, double waste, const char* what) {
  EXPECT_TRUE(Real(found) >= wanted) << what << ": " << found << " < " << wanted;
  EXPECT_TRUE(Real(found) <= wanted * Real(1 + waste) + Real(1e-300))
      << what << ": " << found << " wastes over " << wanted;
}

TEST(CertificateRounding, UpAndDownAreTheNextFloats) {
  EXPECT_EQ(certificate::round_up(1.0), 1.0F);
  EXPECT_EQ(certificate::round_up(1.0 + 0x1p-40), std::nextafter(1.0F, 2.0F));
  EXPECT_EQ(certificate::round_up(1.0 + 0x1p-24), std::nextafter(1.0F, 2.0F));
  EXPECT_EQ(certificate::round_up(-1.0 - 0x1p-40), -1.0F);
  EXPECT_EQ(certificate::round_up(0x1p-200), 0x1p-149F);
  EXPECT_EQ(certificate::round_up(-0x1p-200), 0.0F);
  EXPECT_EQ(certificate::round_up(0.0), 0.0F);
  EXPECT_EQ(certificate::round_up(1e300), INFINITY);
  EXPECT_EQ(certificate::round_up(0x1.ffffffp127), INFINITY);
  EXPECT_TRUE(std::isnan(certificate::round_up(NAN)));
  EXPECT_EQ(certificate::round_down(1.0 + 0x1p-24), 1.0F);
  EXPECT_EQ(certificate::round_down(1e300), 3.40282347e38F);
  Random random(3);
  for (int i = 0; i < 100000; ++i) {
    const double x = std::ldexp(normal(random), below(random, 320) - 170);
    const float up = certificate::round_up(x), down = certificate::round_down(x);
    ASSERT_GE(static_cast<double>(up), x);
    ASSERT_LE(static_cast<double>(down), x);
    ASSERT_LT(static_cast<double>(std::nextafter(up, -INFINITY)), x);
    ASSERT_GT(static_cast<double>(std::nextafter(down, INFINITY)), x);
  }
}

// T2, T3, T4: the radius and the value at the mean, recomputed from the beta that the fold implies.
TEST(CertificateProjection, RadiusAndMeanCoverTheRealOnes) {
  Random random(11);
  for (int trial = 0; trial < 60; ++trial) {
    Case c = positives(random, 3 + below(random, 4), 32);
    const int close = trial % 3;
    if (close == 1) {  // nearly collinear: the residual is a difference of nearly equal numbers
      copy_head(c, 0, c.heads - 1, 1);
      c.q[static_cast<std::size_t>((c.heads - 1) * c.dim)] ^= 1U;
    }
    const DecodedRow row(c);
    const int retained = 1 + below(random, c.heads - 1);
    std::vector<int> order(static_cast<std::size_t>(c.heads));
    for (int h = 0; h < c.heads; ++h) order[static_cast<std::size_t>(h)] = h;
    std::vector<double> cache(static_cast<std::size_t>(c.heads * c.heads)), mean_dot(order.size()),
        mean_error(order.size());
    std::vector<float> mean(static_cast<std::size_t>(c.dim));
    for (float& m : mean) m = static_cast<float>(normal(random) * 30);
    std::vector<Real> exact_mean(order.size());
    for (std::size_t h = 0; h < order.size(); ++h) {
      Real sum = 0;
      for (int d = 0; d < c.dim; ++d) sum += row.q(static_cast<int>(h), d) * Real(mean[static_cast<std::size_t>(d)]);
      exact_mean[h] = sum;
      mean_dot[h] = static_cast<double>(sum);
      mean_error[h] = std::fabs(mean_dot[h]) * 0x1p-50;
    }
    for (const unsigned bits : {1U | 64U, 3U | 64U, 1U, 3U, 0U, 2U | 64U}) {
      const Ablation ablation = ablation_of(bits | 4U);
      Gram gram(row.facts, row.values.data(), order.data(), c.heads, cpu::portable_kernels()->loops, cache.data());
      const Projection p =
          certificate::project(row.facts, order.data(), retained, gram, mean_dot.data(), mean_error.data(), ablation);
      // beta from an independent choice of anchors; the folds must contain it.
      std::vector<std::vector<Real>> residual;
      std::vector<Real> fold(order.size()), at_mean_parts;
      Real at_mean = 0;
      for (int h = retained; h < c.heads; ++h) {
        int anchor = -1;
        double best = 0;
        for (int j = 0; j < retained && ablation.projection; ++j) {
          const double dot = static_cast<double>(row.dot(h, j, c.dim)),
                       square = static_cast<double>(row.dot(j, j, c.dim));
          if (dot > 0 && dot * dot / square > best) {
            best = dot * dot / square;
            anchor = j;
          }
        }
        const double beta = anchor < 0 ? 0
                                       : static_cast<double>(row.dot(h, anchor, c.dim)) /
                                             static_cast<double>(row.dot(anchor, anchor, c.dim));
        const Real weight = Real(c.weights[static_cast<std::size_t>(h)]);
        if (anchor >= 0) fold[static_cast<std::size_t>(anchor)] += weight * Real(beta);
        std::vector<Real> u(static_cast<std::size_t>(c.dim));
        for (int d = 0; d < c.dim; ++d) {
          u[static_cast<std::size_t>(d)] =
              weight * (row.q(h, d) - (anchor < 0 ? Real(0) : Real(beta) * row.q(anchor, d)));
        }
        Real dot = weight * (exact_mean[static_cast<std::size_t>(h)] -
                             (anchor < 0 ? Real(0) : Real(beta) * exact_mean[static_cast<std::size_t>(anchor)]));
        at_mean += ablation.half_linear ? abs(dot) / 2 : (dot > 0 ? dot : Real(0));
        residual.push_back(std::move(u));
      }
      Real separate = 0, absolute = 0, sum_square = 0;
      std::vector<Real> total(static_cast<std::size_t>(c.dim));
      for (const auto& a : residual) {
        Real square = 0;
        for (std::size_t d = 0; d < a.size(); ++d) {
          square += a[d] * a[d];
          total[d] += a[d];
        }
        separate += sqrt(square);
        for (const auto& b : residual) {
          Real dot = 0;
          for (std::size_t d = 0; d < a.size(); ++d) dot += a[d] * b[d];
          absolute += abs(dot);
        }
      }
      for (const Real& t : total) sum_square += t * t;
      const Real joint = ablation.half_linear ? Real(sqrt(absolute)) : Real((sqrt(sum_square) + sqrt(absolute)) / 2);
      Real wanted = ablation.joint_residual && joint < separate ? joint : separate;
      if (ablation.half_linear) wanted /= 2;
      expect_tight(wanted, p.norm, close == 1 ? 1e-4 : 1e-9, "radius");
      EXPECT_EQ(p.norm, p.centred);
      expect_tight(at_mean, p.mean, 1e-9, "mean");
      for (int j = 0; j < retained; ++j) expect_tight(fold[static_cast<std::size_t>(j)], p.fold[j], 1e-9, "fold");
    }
  }
}

// T7: coefficients, aggregate rows and the allowances of the evaluation.
TEST(CertificateForm, CoversItsOwnRounding) {
  Random random(5);
  for (int trial = 0; trial < 40; ++trial) {
    Case c = positives(random, 6, 64);
    for (int h = 2; h < 6; ++h) c.weights[static_cast<std::size_t>(h)] *= -1;
    const DecodedRow row(c);
    RealBound bound;
    bound.retained = 2;
    bound.aggregates = 1;
    std::fill_n(bound.share[0], certificate::kMaxHeads, 0.0);
    for (int h = 0; h < 2; ++h) {
      bound.head[h] = h;
      bound.coef[h] = row.facts.weight[h] * (1 + 1e-9);
    }
    for (int h = 2; h < 6; ++h) bound.share[0][h] = -row.facts.weight[h] / 3;
    ModelError model;
    model.finite = true;
    model.feature[cpu::kNorm] = 0.25;
    std::vector<float> rows(static_cast<std::size_t>(10 * c.dim)), coef(6);
    const auto norm_allowance = [&](const cpu::Arithmetic& arithmetic) {
      cpu::FormSpec spec;
      EXPECT_TRUE(certificate::make_form(bound, row.facts, model, arithmetic, 2, nullptr, row.values.data(),
                                         rows.data(), coef.data(), spec));
      return static_cast<double>(spec.allow[cpu::kNorm]);
    };
    const double base = norm_allowance({0, 0, 0});
    for (int j = 0; j < 2; ++j) {
      EXPECT_GE(static_cast<double>(coef[static_cast<std::size_t>(j)]), bound.coef[j]);
      EXPECT_LE(static_cast<double>(coef[static_cast<std::size_t>(j)]), bound.coef[j] * (1 + 0x1p-22));
    }
    // The stored row differs from the real one by no more than what |k| is charged for it.
    Real square = 0, relu = 0, aggregate = 0;
    for (int d = 0; d < c.dim; ++d) {
      Real real = 0;
      for (int h = 2; h < 6; ++h) real += Real(bound.share[0][h]) * row.q(h, d);
      const Real stored = Real(rows[static_cast<std::size_t>(2 * c.dim + d)]);
      square += (real - stored) * (real - stored);
      aggregate += stored * stored;
    }
    aggregate = sqrt(aggregate);
    for (int j = 0; j < 2; ++j) relu += Real(coef[static_cast<std::size_t>(j)]) * Real(sqrt(row.dot(j, j, c.dim)));
    EXPECT_TRUE(Real(base) >= Real(0.25) + Real(sqrt(square)));
    EXPECT_TRUE(Real(base) <= Real(0.25) * (1 + 1e-6) + aggregate * Real(0x1p-22));
    expect_tight(Real(0.25) + (relu + aggregate) * Real(0x1p-10), norm_allowance({0x1p-10, 0, 0}), 1e-4, "dot error");
    expect_tight(Real(0.25) + aggregate * Real(0x1p-9), norm_allowance({0, 0x1p-9, 0}), 1e-4, "row error");
    expect_tight(Real(0.25) + (relu + aggregate) * Real(17 * 0x1p-20), norm_allowance({0, 0, 0x1p-20}), 2e-2,
                 "epilogue");
  }
}

TEST(CertificateForm, AllowancesGrowByTheirOwnRoundings) {
  Random random(6);
  const DecodedRow row(positives(random, 2, 32));
  RealBound bound;
  bound.retained = 1;
  bound.head[0] = 0;
  bound.coef[0] = row.facts.weight[0];
  bound.rest.norm = bound.rest.centred = 3;
  bound.rest.mean = 5;
  bound.centred = true;
  ModelError model;
  model.finite = true;
  std::vector<float> rows(64 * 3), coef(2), mean(32, 1.0F);
  cpu::FormSpec spec;
  ASSERT_TRUE(certificate::make_form(bound, row.facts, model, {0, 0, 0x1p-12}, 2, mean.data(), row.values.data(),
                                     rows.data(), coef.data(), spec));
  const Real grow = Real(1 + 15 * 0x1p-12);  // 1 row, 2 features, 12
  ASSERT_TRUE(spec.has_alternative);
  expect_tight(3 * grow, static_cast<double>(spec.alt_norm), 1e-2, "norm");
  expect_tight(3 * grow, static_cast<double>(spec.alt_centred), 1e-2, "centred");
  expect_tight(5 * grow, static_cast<double>(spec.alt_mean), 1e-2, "mean");
  EXPECT_GE(spec.constant, 15 * 0x1p-126F);
}

// T8, f64.
TEST(CertificateModel, F64Chain) {
  Random random(8);
  const DecodedRow row(positives(random, 7, 32));
  const ModelError error = certificate::model_error(ScoreModel::f64, row.facts, row.values.data());
  Real magnitude = 0;
  for (int h = 0; h < 7; ++h)
    magnitude += Real(row.c.weights[static_cast<std::size_t>(h)]) * Real(sqrt(row.dot(h, h, 32)));
  ASSERT_TRUE(error.finite);
  expect_tight(magnitude * Real(9 * 0x1p-53), error.feature[cpu::kNorm], 1e-9, "chain");
}

// T8, sm90: the linear form of docs/sm90.md S8 and the joint norms.
TEST(CertificateModel, Sm90Constants) {
  Random random(9);
  for (const int dim : {32, 64, 128, 256}) {
    Case c = positives(random, 9, dim, ScoreModel::sm90);
    c.weights[3] *= -1;
    for (int d = 0; d < 32; ++d) c.q[static_cast<std::size_t>(2 * dim + d)] = 0x01;  // a chunk of subnormal codes
    const DecodedRow row(c);
    const int chunks = dim / 32;
    // S8, one unknown at a time: the recursion is linear.
    const certificate::DotError dot = certificate::sm90_dot_error(chunks);
    const auto recursion = [&](int unknown, bool product) {
      Real error = 0, unit = Real(0x1p-13);
      for (int s = 0; s < chunks; ++s) {
        const Real b = product && s == unknown ? 1 : 0, p = !product && s == unknown ? 1 : 0;
        const Real before = !product && s - 1 == unknown ? 1 : 0;
        const Real losing = s == 0 ? Real(31) * unit * b : Real(32) * unit * (b + before + error);
        error = error + losing + unit * (p + error + losing);
      }
      return error;
    };
    for (int s = 0; s < chunks; ++s) {
      expect_tight(recursion(s, true), dot.product[s], 1e-9, "product");
      expect_tight(recursion(s, false), dot.prefix[s], 1e-9, "prefix");
    }
    std::vector<double> joint(static_cast<std::size_t>(chunks));
    certificate::joint_prefix_norms(row.facts, row.values.data(), joint.data());
    for (int s = 0; s < chunks; ++s) {
      Real gram = 0;
      for (int a = 0; a < 9; ++a) {
        for (int b = 0; b < 9; ++b) {
          gram += abs(Real(c.weights[static_cast<std::size_t>(a)]) * Real(c.weights[static_cast<std::size_t>(b)]) *
                      row.dot(a, b, 32 * (s + 1)));
        }
      }
      expect_tight(Real(sqrt(gram)), joint[static_cast<std::size_t>(s)], 1e-3, "joint");
    }
    const ModelError error = certificate::model_error(ScoreModel::sm90, row.facts, row.values.data());
    ASSERT_TRUE(error.finite);
    const Real gamma = Real(6) * Real(0x1p-24) / (1 - Real(6) * Real(0x1p-24));  // two groups of eight
    for (int s = 0; s < chunks; ++s) {
      Real powers = 0;
      for (int h = 0; h < 9; ++h) {
        double power = 0;
        for (int d = 32 * s; d < 32 * s + 32; ++d) {
          const double value = std::fabs(static_cast<double>(row.values[static_cast<std::size_t>(h * dim + d)]));
          if (value > 0) power = std::max(power, std::max(0x1p-6, std::exp2(std::floor(std::log2(value)))));
        }
        powers += abs(Real(c.weights[static_cast<std::size_t>(h)])) * Real(power);
      }
      expect_tight(powers * Real(dot.product[s]), error.feature[cpu::kModel + 2 * s], 1e-6, "products of a chunk");
      if (s + 1 < chunks) {
        expect_tight(Real(joint[static_cast<std::size_t>(s)]) * Real(dot.prefix[s]),
                     error.feature[cpu::kModel + 2 * s + 3], 1e-6, "prefix of a chunk");
      }
    }
    const Real last =
        Real(joint[static_cast<std::size_t>(chunks - 1)]) * (Real(dot.prefix[chunks - 1]) * (1 + gamma) + gamma);
    expect_tight(last, error.feature[cpu::kNorm], 1e-6, "whole norm");
    EXPECT_GE(error.constant, 9 * 0x1p-149);
    // S11: the largest partial sum of the served chain at the scale limit stays in range.
    Real largest = 0;
    for (int h = 0; h < 9; ++h) {
      for (int d = 0; d < dim; ++d) largest += abs(Real(c.weights[static_cast<std::size_t>(h)]) * row.q(h, d)) * 448;
    }
    EXPECT_TRUE(largest * (1 + gamma) * Real(error.scale_limit) < Real(0x1p127));
    EXPECT_TRUE(largest * Real(error.scale_limit) > Real(0x1p125));
  }
}

TEST(CertificateModel, OverflowGoesToTheModel) {
  Random random(10);
  Case c = positives(random, 9, 32, ScoreModel::sm90);
  c.dense = true;
  for (float& w : c.weights) w = 1e34F;
  const DecodedRow row(c);
  EXPECT_FALSE(certificate::model_error(ScoreModel::sm90, row.facts, row.values.data()).finite);
  EXPECT_TRUE(build(c, scalar_arithmetic(32)).finite == false);
  c.model = ScoreModel::f64;
  EXPECT_FALSE(build(c, scalar_arithmetic(32)).finite) << "F32 sums of the screen would overflow";
  c.weights[0] = NAN;
  EXPECT_FALSE(build(c, scalar_arithmetic(32)).finite);
}

// Spec: a NaN query code silences the head under sm90 and the whole row under f64.
TEST(CertificateModel, NanQueryCode) {
  Random random(12);
  for (const bool dense : {false, true}) {
    Case c = positives(random, 3, 32, ScoreModel::sm90);
    c.dense = dense;
    c.retained = 2;
    c.q[5] = 0x7f;
    const BuiltForm form = build(c, scalar_arithmetic(32));
    ASSERT_TRUE(form.finite);
    EXPECT_TRUE(holds(c, evaluate_scalar(form.spec, c), c.score()));
    c.model = ScoreModel::f64;
    EXPECT_FALSE(build(c, scalar_arithmetic(32)).finite);
  }
}

// Where the model's bits and the real sum part: the f64 chain absorbs -1, the sm90 chain overflows in group 1.
TEST(CertificateModel, BitsThatLeaveTheRealSum) {
  Case c;
  c.heads = 3;
  c.dim = 32;
  c.dense = true;
  c.q.assign(96, 0x38);  // 1.0
  c.key.assign(32, 0x38);
  c.weights = {0x1p60F, -1.0F, -0x1p60F};
  EXPECT_EQ(c.score(), 0.0F);
  for (const cpu::Kernels* kernels : available_kernels()) {
    KernelRunner runner(*kernels);
    const BuiltForm form = build(c, runner.arithmetic(c.dim));
    ASSERT_TRUE(form.finite);
    EXPECT_TRUE(holds(c, runner.evaluate(form, c), 0.0F));
  }
  // In real numbers the score is -32; the model's own allowance alone reaches the bits.
  const BuiltForm exact = build(c, {0, 0, 0});
  EXPECT_TRUE(holds(c, evaluate<Real>(exact.spec, c), 0.0F));
  EXPECT_FALSE(holds(c, evaluate<Real>(build(c, {0, 0, 0}, Drop::model).spec, c), 0.0F));

  Case over;
  over.model = ScoreModel::sm90;
  over.heads = 9;
  over.dim = 32;
  over.dense = true;
  over.q.assign(9 * 32, 0);
  for (const int h : {0, 1, 8}) over.q[static_cast<std::size_t>(h * 32)] = 0x40;  // 2.0
  over.key.assign(32, 0);
  over.key[0] = 0x38;
  over.weights = {-3e38F, -1.0F, 0, 0, 0, 0, 0, 0, 3e38F};
  EXPECT_EQ(over.score(), INFINITY);
  EXPECT_FALSE(build(over, scalar_arithmetic(32)).finite) << "a finite bound would be wrong";
  // Lanes 0 and 1 of the cross-lane sum are scaled before they meet: 4e38 overflows, -3e38 does not.
  over.weights = {2e38F * 0x1p-40F, 0, -1.5e38F * 0x1p-40F, 0, 0, 0, 0, 0, 0};
  over.q[2 * 32] = 0x40;
  over.scale = 0x1p40F;
  EXPECT_EQ(over.score(), INFINITY);
  const BuiltForm form = build(over, scalar_arithmetic(32));
  ASSERT_TRUE(form.finite);
  EXPECT_LT(form.spec.scale_limit, over.scale);
  for (const cpu::Kernels* kernels : available_kernels()) {
    KernelRunner runner(*kernels);
    EXPECT_EQ(runner.evaluate(build(over, runner.arithmetic(32)), over).upper, INFINITY);
  }
}

TEST(CertificateChoice, CheapLook) {
  std::vector<float> weights(32, 1.0F);
  const ScoreRow row{nullptr, 0, weights.data(), 1, 32, 128};
  EXPECT_FALSE(certificate::may_profit(row, 65536, 1966)) << "no head to aggregate and few to omit";
  for (int h = 0; h < 16; ++h) weights[static_cast<std::size_t>(2 * h)] = -1;
  EXPECT_TRUE(certificate::may_profit(row, 65536, 1966)) << "half of the heads aggregate";
  EXPECT_FALSE(certificate::may_profit(row, 65536, 3932, {.refine = 5, .key = 0.28}))
      << "gathering survivors costs too much";
  EXPECT_TRUE(certificate::may_profit(row, 65536, 131, {.refine = 5, .key = 0.28})) << "few survivors";
  EXPECT_FALSE(certificate::may_profit(row, 65536, 58982)) << "nearly every key wins";
}

/// Rows come in blocks of 16, and survivors are dear: leaving positive heads out for the sake of a block pays where
/// winners are few.
TEST(CertificateChoice, CheapLookAtBlocks) {
  const cpu::Costs costs{.refine = 4, .key = 0.38, .row = 4600, .narrow = {.block_rows = 16, .block = 0.24}};
  std::vector<float> weights(32, -1.0F);
  const ScoreRow row{nullptr, 0, weights.data(), 1, 32, 128};
  std::fill_n(weights.begin(), 14, 1.0F);
  EXPECT_FALSE(certificate::may_profit(row, 65536, 2048, costs)) << "survivors take what a block saves";
  EXPECT_TRUE(certificate::may_profit(row, 1 << 20, 2048, costs)) << "one block";
  std::fill_n(weights.begin(), 17, 1.0F);
  EXPECT_FALSE(certificate::may_profit(row, 131072, 2048, costs)) << "two blocks";
  EXPECT_TRUE(certificate::may_profit(row, 1 << 18, 2048, costs)) << "one block of them will do";
}

}  // namespace
}  // namespace dosa::test
