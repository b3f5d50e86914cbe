// What the sample predicts decides the path: a row that keeps too many survivors pays for its certificate and for the
// dense pass after it. Inputs with plateaus, ties and keys without a bound must not lure a row there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dosa/dosa.hpp"
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
    const Plan decided = plan(shape_of(workload.problem), options);
    const std::int64_t rows = decided.shape().rows;
    std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * options.top_k)),
        lengths(static_cast<std::size_t>(rows));
    Selection selection;
    selection.indices = TensorView<std::int32_t, 2>::contiguous(indices.data(), {rows, options.top_k});
    selection.lengths = TensorView<std::int32_t, 1>::contiguous(lengths.data(), {rows});
    std::vector<std::byte> workspace(decided.workspace_bytes());
    Stats stats;
    stats.row_reports.resize(static_cast<std::size_t>(rows));
    run(decided, workload.problem, selection, workspace, {}, &stats);
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
                                         "all_pos_inf", "both_inf", "nan_some", "nan_most", "scales_huge"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace dosa::test
