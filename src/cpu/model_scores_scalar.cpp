// The scalar score models, key by key, for every instruction set that has no model_scores_<isa>.cpp yet. Delete a line
// below with the arrival of that file.
#include <limits>

#include "cpu/model_scores.hpp"

namespace dosa::cpu {
namespace {

void score_keys(ScoreModel model, const ScoreRow& row, const KeySource& keys, const std::int32_t* index,
                std::int64_t first, std::int64_t count, float* scores) {
  for (std::int64_t i = 0; i < count; ++i) {
    const KeyAddress at = keys.locate(index != nullptr ? index[i] : first + i);
    scores[i] = at.codes == nullptr ? std::numeric_limits<float>::quiet_NaN() : score(model, row, at.codes, *at.scale);
  }
}

}  // namespace

#define DOSA_SCALAR_MODEL_SCORES(isa)                                                                        \
  std::size_t isa::model_bytes(ScoreModel, int, int) { return 0; }                                           \
  void isa::model_row(ScoreModel, const ScoreRow&, std::byte*) {}                                            \
  void isa::model_scores(ScoreModel model, const ScoreRow& row, const std::byte*, const KeySource& keys,     \
                         const std::int32_t* index, std::int64_t first, std::int64_t count, float* scores) { \
    score_keys(model, row, keys, index, first, count, scores);                                               \
  }
DOSA_SCALAR_MODEL_SCORES(portable)
DOSA_SCALAR_MODEL_SCORES(avx2)
DOSA_SCALAR_MODEL_SCORES(avx512)

}  // namespace dosa::cpu
