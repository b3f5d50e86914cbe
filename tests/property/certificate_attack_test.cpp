// Rows and keys built against each theorem of docs/certificate.md, checked against the bits of both score models: the
// form evaluated operation by operation, and by the kernels of every instruction set that this machine has.
#include <gtest/gtest.h>

#include "property/certificate_kernels.hpp"

namespace dosa::test {
namespace {

template <class Evaluate>
void attack(ScoreModel model, bool narrow, std::uint64_t seed, int count, const Evaluate& evaluate_case) {
  Random random(seed);
  int bounded = 0, not_finite = 0;
  for (int i = 0; i < count; ++i) {
    Case c = some_case(random, model);
    c.narrow = narrow;
    Interval interval{};
    if (!evaluate_case(c, interval)) {
      ++not_finite;
      continue;
    }
    const float bits = c.score();
    ASSERT_FALSE(std::isnan(interval.upper));
    ASSERT_TRUE(holds(c, interval, bits))
        << "case " << i << " bits " << bits << " outside [" << interval.lower << ", " << interval.upper << "]\n"
        << to_json(c).dump();
    bounded += std::isfinite(interval.upper) ? 1 : 0;
  }
  // The attack means nothing if most bounds are infinite.
  EXPECT_GT(bounded, count / 2);
  EXPECT_LT(not_finite, count / 4);
}

class CertificateAttack : public testing::TestWithParam<ScoreModel> {};

TEST_P(CertificateAttack, OperationByOperation) {
  for (const bool narrow : {false, true}) {
    constexpr int kCases = 20000;
    int narrow_forms = 0;
    attack(GetParam(), narrow, 1, kCases, [&](const Case& c, Interval& interval) {
      const BuiltForm form = build(c, scalar_arithmetic(c.dim));
      if (form.finite) interval = evaluate_scalar(form.spec, c);
      narrow_forms += form.finite && form.spec.narrow != nullptr ? 1 : 0;
      return form.finite;
    });
    if (narrow) {
      EXPECT_GT(narrow_forms, kCases / 2);
    } else {
      EXPECT_EQ(narrow_forms, 0);
    }
  }
}

TEST_P(CertificateAttack, EveryInstructionSet) {
  for (const cpu::Kernels* kernels : available_kernels()) {
    SCOPED_TRACE(name(kernels->isa));
    KernelRunner runner(*kernels);
    for (const bool narrow : {false, true}) {
      if (narrow && !runner.narrow()) continue;
      attack(GetParam(), narrow, 2, 10000, [&](const Case& c, Interval& interval) {
        const BuiltForm form = build(c, runner.arithmetic(c.dim));
        if (form.finite) interval = runner.evaluate(form, c);
        return form.finite;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CertificateAttack, testing::Values(ScoreModel::f64, ScoreModel::sm90),
                         [](const auto& model) { return std::string(name(model.param)); });

}  // namespace
}  // namespace dosa::test
