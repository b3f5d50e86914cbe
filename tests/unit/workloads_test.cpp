// The named inputs are what they say they are.
#include "workloads/workloads.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "dosa/plan.hpp"
#include "support/oracle.hpp"
#include "workloads/builder.hpp"

namespace dosa::test {
namespace {

TEST(Workloads, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const workloads::Entry& entry : workloads::registry()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_FALSE(entry.description.empty()) << entry.name;
    EXPECT_EQ(&workloads::find(entry.name), &entry);
  }
  EXPECT_GE(names.size(), 90U);
  EXPECT_THROW(static_cast<void>(workloads::find("no_such_input")), Error);
}

TEST(Workloads, KnownScoresAreTheModelsScores) {
  int known = 0;
  for (const workloads::Entry& entry : workloads::registry()) {
    for (const std::int32_t heads : {1, 3, 8, 40}) {
      workloads::Size size = entry.small;
      size.heads = heads;
      size.keys = 700;
      size.top_k = 60;
      const workloads::Workload workload = workloads::make(entry, size);
      if (workload.known_scores.empty()) continue;
      ++known;
      for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
        const ScoreTable table(workload.problem, model);
        for (std::int64_t i = 0; i < 700; ++i) {
          const float found = table.at(0, i), wanted = workload.known_scores[static_cast<std::size_t>(i)];
          if (i < *workload.problem.ks.at(0) || i >= *workload.problem.ke.at(0)) continue;
          if (std::isnan(wanted)) {
            EXPECT_TRUE(std::isnan(found)) << entry.name << " key " << i;
          } else if (wanted == 0) {
            ASSERT_EQ(found, 0.0F) << entry.name << " heads " << heads << " key " << i;
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(wanted))
                << entry.name << " heads " << heads << " key " << i << ": " << found << " " << wanted;
          }
        }
      }
    }
  }
  EXPECT_GE(known, 80);
}

TEST(Workloads, TraceEntriesHavePlainViews) {
  for (const workloads::Entry& entry : workloads::registry()) {
    const workloads::Workload workload = workloads::make(entry, entry.small);
    const Shape shape = shape_of(workload.problem);
    EXPECT_GT(shape.rows, 0) << entry.name;
    if (!entry.trace) continue;
    const auto* keys = std::get_if<ContiguousKeys>(&workload.problem.keys);
    ASSERT_NE(keys, nullptr) << entry.name;
    EXPECT_EQ(keys->codes.strides[0], shape.head_dim) << entry.name;
    EXPECT_EQ(workload.problem.q.strides[0], shape.heads * shape.head_dim) << entry.name;
  }
}

TEST(Workloads, SameSizeSameBytes) {
  for (const char* name : {"narrow_band", "codes_heavy", "indexer_like"}) {
    const workloads::Entry& entry = workloads::find(name);
    const auto a = workloads::make(entry, entry.small), b = workloads::make(entry, entry.small);
    const auto& x = std::get<ContiguousKeys>(a.problem.keys);
    const auto& y = std::get<ContiguousKeys>(b.problem.keys);
    EXPECT_TRUE(std::equal(x.codes.data, x.codes.data + x.codes.shape[0] * x.codes.shape[1], y.codes.data)) << name;
    EXPECT_TRUE(std::equal(x.scales.data, x.scales.data + x.scales.shape[0], y.scales.data)) << name;
  }
}

TEST(Workloads, SizesOutOfRangeAreRefused) {
  const workloads::Entry& entry = workloads::find("all_equal");
  for (const workloads::Size& size :
       {workloads::Size{0, 1, 1, 32, 1, 1}, workloads::Size{1, 0, 1, 32, 1, 1}, workloads::Size{1, 1, 129, 32, 1, 1},
        workloads::Size{1, 1, 1, 48, 1, 1}, workloads::Size{1, 1, 1, 32, 0, 1}}) {
    EXPECT_THROW(static_cast<void>(workloads::make(entry, size)), Error);
  }
}

TEST(Workloads, SmallestSizesAreAccepted) {
  for (const workloads::Entry& entry : workloads::registry()) {
    const workloads::Workload workload = workloads::make(entry, {1, 1, 1, 32, 1, 3});
    const Result result = expected(workload.problem, top(1));
    EXPECT_LE(result.lengths[0], 1) << entry.name;
  }
}

TEST(Workloads, NearestCodeIsNearest) {
  workloads::Random random(5);
  // Every finite code comes back, and a value between two neighbours goes to the nearer one, to even half way.
  const auto value = [](int code) {
    const int exponent = code >> 3, mantissa = code & 7;
    return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  };
  for (int code = 0; code < 0x7e; ++code) {
    const double low = value(code), high = value(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(workloads::e4m3_nearest(low), code);
    EXPECT_EQ(workloads::e4m3_nearest(-low), code | 0x80);
    EXPECT_EQ(workloads::e4m3_nearest(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(workloads::e4m3_nearest(std::nextafter(middle, low)), code);
    EXPECT_EQ(workloads::e4m3_nearest(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(workloads::e4m3_nearest(1e9), 0x7e);
  EXPECT_EQ(workloads::e4m3_nearest(std::nan("")), 0x7f);
}

}  // namespace
}  // namespace dosa::test
