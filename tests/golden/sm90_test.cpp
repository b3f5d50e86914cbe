// Every recorded bit of the real Hopper kernels against the scalar model.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "contract/window.hpp"
#include "golden/vector_file.hpp"
#include "score/score.hpp"
#include "support/shared_data.hpp"

namespace dosa::test {
namespace {

TEST(GoldenSm90, EveryRecordedAccumulatorStepByStep) {
  DOSA_SHARED_FOLDER(folder, "vectors");
  std::int64_t compared = 0, steps_in_files = 0;
  for (const auto& path : vector_files(folder, true)) {
    const VectorFile file(path);
    const auto a = file.read<std::uint8_t>("a", "F8_E4M3"), b = file.read<std::uint8_t>("b", "F8_E4M3");
    const auto recorded = file.read<std::uint32_t>("acc", "F32");
    const auto shape = file.shape("acc");
    const std::int64_t steps = shape.at(0), rows = shape.at(1), columns = shape.at(2), dim = file.shape("a").at(1);
    ASSERT_EQ(steps * 32, dim) << file.name();
    steps_in_files += static_cast<std::int64_t>(recorded.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        float c = 0.0F;
        for (std::int64_t step = 0; step < steps; ++step) {
          c = sm90_accumulate(&a.at(static_cast<std::size_t>(row * dim + 32 * step)),
                              &b.at(static_cast<std::size_t>(column * dim + 32 * step)), c);
          const auto at = static_cast<std::size_t>((step * rows + row) * columns + column);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(c), recorded.at(at))
              << file.name() << " step " << step << " row " << row << " column " << column;
          ++compared;
        }
      }
    }
  }
  EXPECT_EQ(compared, steps_in_files);
  EXPECT_EQ(compared, 14 * 4 * 32 * 64);  // 14 files
}

TEST(GoldenSm90, EveryRecordedLogit) {
  DOSA_SHARED_FOLDER(folder, "vectors");
  std::int64_t inside = 0, outside = 0, in_files = 0, files = 0;
  for (const auto& path : vector_files(folder, false)) {
    const RecordedLogits recorded{VectorFile(path)};
    ++files;
    in_files += static_cast<std::int64_t>(recorded.logits.size());
    for (std::int64_t t = 0; t < recorded.queries; ++t) {
      const auto row_index = static_cast<std::size_t>(t);
      const Window window = window_of(recorded.ks.at(row_index), recorded.ke.at(row_index), recorded.keys);
      const ScoreRow row{recorded.q.data() + t * recorded.heads * recorded.head_dim,
                         recorded.head_dim,
                         recorded.weights.data() + t * recorded.heads,
                         1,
                         static_cast<std::int32_t>(recorded.heads),
                         static_cast<std::int32_t>(recorded.head_dim)};
      for (std::int64_t i = 0; i < recorded.keys; ++i) {
        const std::uint32_t bits = recorded.logits.at(static_cast<std::size_t>(t * recorded.keys + i));
        if (i < window.first || i >= window.last) {
          ASSERT_EQ(bits, 0xff800000U) << recorded.name << " row " << t << " key " << i << " lies outside the window";
          ++outside;
          continue;
        }
        const float score = score_sm90(row, recorded.k.data() + i * recorded.head_dim,
                                       recorded.k_scale.at(static_cast<std::size_t>(i)));
        ASSERT_EQ(std::bit_cast<std::uint32_t>(score), bits) << recorded.name << " row " << t << " key " << i;
        ++inside;
      }
    }
  }
  EXPECT_EQ(inside + outside, in_files);
  EXPECT_EQ(files, 43);
  EXPECT_EQ(inside, 184630);
  EXPECT_EQ(outside, 5882);
}

}  // namespace
}  // namespace dosa::test
