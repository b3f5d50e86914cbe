// Bulk scorers of every instruction set against the scalar models, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "contract/window.hpp"
#include "cpu/float_environment.hpp"
#include "cpu/model_scores.hpp"
#include "golden/vector_file.hpp"
#include "score/score.hpp"
#include "support/shared_data.hpp"
#include "unit/score_inputs.hpp"

namespace dosa::test {
namespace {

struct Scorer {
  const char* name;
  std::size_t (*bytes)(ScoreModel, int, int);
  void (*row)(ScoreModel, const ScoreRow&, std::byte*);
  void (*scores)(ScoreModel, const ScoreRow&, const std::byte*, const KeySource&, const std::int32_t*, std::int64_t,
                 std::int64_t, float*);
};

std::vector<Scorer> all_scorers() {
  std::vector<Scorer> all{
      {"portable", cpu::portable::model_bytes, cpu::portable::model_row, cpu::portable::model_scores}};
#if defined(__x86_64__)
  all.push_back({"avx2", cpu::avx2::model_bytes, cpu::avx2::model_row, cpu::avx2::model_scores});
  all.push_back({"avx512", cpu::avx512::model_bytes, cpu::avx512::model_row, cpu::avx512::model_scores});
#endif
  return all;
}

bool supported(const std::string& name) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (name == "avx2") return avx2;
  if (name == "avx512") {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return name == "portable";
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }
constexpr std::uint32_t kNan = 0x7fffffffU;

class BulkScores : public testing::TestWithParam<Scorer> {
 protected:
  void SetUp() override {
    if (!supported(GetParam().name)) GTEST_SKIP() << "this processor lacks " << GetParam().name;
  }

  // Compares count keys with the scalar model; the memory given is exactly what was asked for, at an odd address, and
  // the places before and after the scores must keep what they held.
  static void expect_same(ScoreModel model, const ScoreRow& row, const KeySource& keys, const std::int32_t* index,
                          std::int64_t first, std::int64_t count, const std::string& what) {
    const Scorer& scorer = GetParam();
    std::vector<std::byte> memory(scorer.bytes(model, row.heads, row.head_dim) + 5, std::byte{0xa5});
    scorer.row(model, row, memory.data() + 5);
    const float canary = 1234.5F;
    std::vector<float> scores(static_cast<std::size_t>(count) + 2, canary);
    scorer.scores(model, row, memory.data() + 5, keys, index, first, count, scores.data() + 1);
    EXPECT_EQ(scores.front(), canary) << what;
    EXPECT_EQ(scores.back(), canary) << what;
    for (std::int64_t j = 0; j < count; ++j) {
      const KeyAddress key = keys.locate(index != nullptr ? index[j] : first + j);
      const std::uint32_t wanted = key.codes == nullptr ? kNan : bits(score(model, row, key.codes, *key.scale));
      ASSERT_EQ(bits(scores[static_cast<std::size_t>(j) + 1]), wanted)
          << what << ", " << (model == ScoreModel::f64 ? "f64" : "sm90") << " H " << row.heads << " D " << row.head_dim
          << " count " << count << " place " << j;
    }
  }
};

TEST_P(BulkScores, EveryRecordedLogit) {
  DOSA_SHARED_FOLDER(folder, "vectors");
  const Scorer& scorer = GetParam();
  std::int64_t compared = 0;
  for (const auto& path : vector_files(folder, false)) {
    const RecordedLogits recorded{VectorFile(path)};
    ContiguousKeys view;
    view.codes = TensorView<const std::uint8_t, 2>::contiguous(recorded.k.data(), {recorded.keys, recorded.head_dim});
    view.scales = TensorView<const float, 1>::contiguous(recorded.k_scale.data(), {recorded.keys});
    const KeySource keys(view);
    const auto heads = static_cast<int>(recorded.heads), head_dim = static_cast<int>(recorded.head_dim);
    std::vector<std::byte> memory(scorer.bytes(ScoreModel::sm90, heads, head_dim));
    std::vector<float> scores(static_cast<std::size_t>(recorded.keys));
    for (std::int64_t t = 0; t < recorded.queries; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const Window window = window_of(recorded.ks.at(at), recorded.ke.at(at), recorded.keys);
      const ScoreRow row{recorded.q.data() + t * recorded.heads * recorded.head_dim,
                         recorded.head_dim,
                         recorded.weights.data() + t * recorded.heads,
                         1,
                         heads,
                         head_dim};
      scorer.row(ScoreModel::sm90, row, memory.data());
      scorer.scores(ScoreModel::sm90, row, memory.data(), keys, nullptr, window.first, window.size(), scores.data());
      for (std::int64_t i = window.first; i < window.last; ++i, ++compared) {
        ASSERT_EQ(bits(scores.at(static_cast<std::size_t>(i - window.first))),
                  recorded.logits.at(static_cast<std::size_t>(t * recorded.keys + i)))
            << recorded.name << " row " << t << " key " << i;
      }
      // f64 has no recorded bits: these inputs go against the scalar model, a few keys of every row.
      const std::int64_t some = std::min<std::int64_t>(window.size(), 20);
      expect_same(ScoreModel::f64, row, keys, nullptr, window.first, some, recorded.name);
    }
  }
  EXPECT_EQ(compared, 184630);
}

TEST_P(BulkScores, HostileInputsOfEveryShape) {
  const cpu::FloatEnvironment environment;
  Inputs inputs(512);
  int trial = 0;
  for (const int heads : {1, 3, 4, 8, 9, 16, 17, 24, 31, 32, 40, 48, 56, 64, 72, 96, 100, 127, 128}) {
    for (const int dim : {32, 64, 96, 128, 160, 192, 224, 256}) {
      for (int round = 0; round < 4; ++round, ++trial) {
        const auto family = [&] { return static_cast<int>(inputs.below(Inputs::kCodeFamilies)); };
        const std::int64_t stored = 1 + static_cast<std::int64_t>(inputs.below(90));
        const std::int64_t count = 1 + static_cast<std::int64_t>(inputs.below(70));
        const std::int64_t stride = dim + static_cast<std::int64_t>(inputs.below(3)) * 7;
        const std::size_t shift = inputs.below(16);
        // One family a key, so that NaN keys stand beside others in a block.
        std::vector<std::uint8_t> codes(shift + static_cast<std::size_t>(stored * stride), 0x7f);
        for (std::int64_t i = 0; i < stored; ++i) {
          const auto key = inputs.codes(static_cast<std::size_t>(dim), family());
          std::memcpy(codes.data() + shift + i * stride, key.data(), key.size());
        }
        const int q_family = trial % 5 == 0 ? family() : 1 + trial % 6;
        const auto q = inputs.codes(static_cast<std::size_t>(heads * dim) + 11, q_family);
        const auto weights = inputs.numbers(static_cast<std::size_t>(heads) * 2, trial % Inputs::kFloatFamilies);
        const auto scales = inputs.numbers(static_cast<std::size_t>(stored), trial / 3 % Inputs::kFloatFamilies);
        ContiguousKeys view;
        view.codes = {codes.data() + shift, {stored, dim}, {stride, 1}, {}};
        view.scales = TensorView<const float, 1>::contiguous(scales.data(), {stored});
        const KeySource keys(view);
        std::vector<std::int32_t> index;  // repeats are likely
        for (std::int64_t j = 0; j < count; ++j) {
          index.push_back(static_cast<std::int32_t>(inputs.below(static_cast<std::uint64_t>(stored))));
        }
        const ScoreRow row{q.data() + trial % 11, round == 3 ? 0 : dim, weights.data(), 1 + trial % 2, heads, dim};
        for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
          expect_same(model, row, keys, index.data(), 0, count, "gathered");
          const std::int64_t first = static_cast<std::int64_t>(inputs.below(static_cast<std::uint64_t>(stored)));
          expect_same(model, row, keys, nullptr, first, stored - first, "in order");
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(BulkScores, PagesOfEverySizeAndInvalidOnes) {
  const cpu::FloatEnvironment environment;
  Inputs inputs(77);
  for (int page_size = 1; page_size <= 256; page_size *= 2) {
    for (const int dim : {32, 128}) {
      const int heads = 1 + static_cast<int>(inputs.below(40));
      const std::int64_t pages = 5, columns = 7;
      const std::int64_t page_stride = page_size * (dim + 4) + 4 * static_cast<std::int64_t>(inputs.below(5));
      std::vector<float> cache(static_cast<std::size_t>(pages * page_stride / 4));
      auto* bytes = reinterpret_cast<std::uint8_t*>(cache.data());
      for (std::int64_t i = 0; i < pages * page_stride; ++i) bytes[i] = inputs.code(1);
      for (std::int64_t page = 0; page < pages; ++page) {
        for (int token = 0; token < page_size; ++token) {
          const float scale = inputs.number(0);
          std::memcpy(bytes + page * page_stride + page_size * dim + token * 4, &scale, 4);
        }
      }
      const std::vector<std::int32_t> table{3, -1, 0, 5, 4, std::numeric_limits<std::int32_t>::max(),
                                            1,  // request 0
                                            9, 9,  9, 9, 9, 9,
                                            9};  // request 1
      PagedKeys paged;
      paged.cache = bytes;
      paged.pages = pages, paged.page_stride = page_stride, paged.page_size = page_size, paged.head_dim = dim;
      paged.block_table = TensorView<const std::int32_t, 2>::contiguous(table.data(), {2, columns});
      const auto q = inputs.codes(static_cast<std::size_t>(heads * dim), 1);
      const auto weights = inputs.numbers(static_cast<std::size_t>(heads), 0);
      const ScoreRow row{q.data(), dim, weights.data(), 1, heads, dim};
      std::vector<std::int32_t> index;
      for (int j = 0; j < 100; ++j) {
        index.push_back(static_cast<std::int32_t>(inputs.below(static_cast<std::uint64_t>(columns * page_size))));
      }
      for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
        const KeySource some(paged, 0), none(paged, 1);
        expect_same(model, row, some, index.data(), 0, 100, "paged, gathered");
        expect_same(model, row, some, nullptr, 0, columns * page_size, "paged, in order");
        expect_same(model, row, none, index.data(), 0, 100, "no valid page");
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(BulkScores, NothingToScoreTouchesNothing) {
  const std::vector<std::uint8_t> q(8 * 32, 0x38), k(32, 0x38);
  const std::vector<float> weights(8, 1.0F), scales(1, 1.0F);
  ContiguousKeys view;
  view.codes = TensorView<const std::uint8_t, 2>::contiguous(k.data(), {1, 32});
  view.scales = TensorView<const float, 1>::contiguous(scales.data(), {1});
  const ScoreRow row{q.data(), 32, weights.data(), 1, 8, 32};
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    expect_same(model, row, KeySource(view), nullptr, 0, 0, "empty");
  }
}

#if defined(__x86_64__)
TEST_P(BulkScores, RoundingModeOfTheThreadIsGivenBack) {
  const cpu::FloatEnvironment environment;
  const unsigned before = _mm_getcsr() & ~0x3fU;  // without the sticky flags
  const std::vector<std::uint8_t> q(32 * 32, 0x35), k(32, 0x3b);
  const std::vector<float> weights(32, 1.0F / 3), scales(1, 1.0F / 7);
  ContiguousKeys view;
  view.codes = TensorView<const std::uint8_t, 2>::contiguous(k.data(), {1, 32});
  view.scales = TensorView<const float, 1>::contiguous(scales.data(), {1});
  const ScoreRow row{q.data(), 32, weights.data(), 1, 32, 32};
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    expect_same(model, row, KeySource(view), nullptr, 0, 1, "one key");
    EXPECT_EQ(_mm_getcsr() & ~0x3fU, before);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Isa, BulkScores, testing::ValuesIn(all_scorers()),
                         [](const auto& scorer) { return std::string(scorer.param.name); });

}  // namespace
}  // namespace dosa::test
