// What the sample predicts decides the path: a row that keeps too many survivors pays for its certificate and for the
// dense pass after it. Inputs with plateaus, ties and keys without a bound must not lure a row there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dosa/dosa.hpp"
#include "support/reports.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

class CertificateChoiceOn : public testing::TestWithParam<std::string> {};

TEST_P(CertificateChoiceOn, NoRowIsScreenedInVain) {
  workloads::Size size;
  size.rows = 4;
  size.keys = 16384;
  size.heads = 16;
  size.head_dim = 64;
  size.top_k = 256;
  const workloads::Workload workload = workloads::make(workloads::find(GetParam()), size);
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    Options options;
    options.top_k = workload.top_k;
    options.model = model;
    options.backend = Backend::cpu;
    options.threads = 1;
    const Stats stats = run_with_reports(workload.problem, options);
    EXPECT_EQ(stats.rows_rescreened, 0) << name(model);
    for (const RowReport& report : stats.row_reports) {
      EXPECT_NE(report.reason, RowReason::too_many_survivors)
          << name(model) << ": r " << report.retained_heads << ", survivors " << report.survivors << " of "
          << report.visible;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, CertificateChoiceOn,
                         testing::Values("all_equal", "relu_plateau", "relu_plateau_signed", "negative_zero",
                                         "top_unique_rest_equal", "narrow_band", "concentrated", "few_values_3",
                                         "all_pos_inf", "both_inf", "nan_some", "nan_most", "scales_huge",
                                         "scales_tiny", "scales_ue8m0", "codes_one_hot", "codes_cancelling",
                                         "crowded_boundary", "tiny_fp16", "codes_uniform"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace dosa::test
