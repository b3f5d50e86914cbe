// Rows and keys built against each theorem of docs/certificate.md, checked against the bits of both score models.
#include <gtest/gtest.h>

#include "property/certificate_cases.hpp"

namespace dosa::test {
namespace {

void attack(ScoreModel model, std::uint64_t seed, int count) {
  Random random(seed);
  int bounded = 0, not_finite = 0;
  for (int i = 0; i < count; ++i) {
    const Case c = some_case(random, model);
    const BuiltForm form = build(c, scalar_arithmetic(c.dim));
    if (!form.finite) {
      ++not_finite;
      continue;
    }
    const float bits = c.score();
    const Interval interval = evaluate_scalar(form.spec, c);
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

TEST(CertificateAttack, F64) { attack(ScoreModel::f64, 1, 60000); }
TEST(CertificateAttack, Sm90) { attack(ScoreModel::sm90, 2, 60000); }

}  // namespace
}  // namespace dosa::test
