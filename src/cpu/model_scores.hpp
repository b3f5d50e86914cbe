// Scores under the model, bit for bit, many keys at a time: one implementation an instruction set
// (model_scores_<isa>.cpp), reached through the Kernels table (the AMX table uses the AVX-512 one).
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/key_source.hpp"
#include "score/score.hpp"

#define DOSA_DECLARE_MODEL_SCORES(isa_namespace)                                                           \
  namespace dosa::cpu::isa_namespace {                                                                     \
  std::size_t model_bytes(ScoreModel model, int heads, int head_dim);                                      \
  void model_row(ScoreModel model, const ScoreRow& row, std::byte* memory);                                \
  void model_scores(ScoreModel model, const ScoreRow& row, const std::byte* memory, const KeySource& keys, \
                    const std::int32_t* index, std::int64_t first, std::int64_t count, float* scores);     \
  }
DOSA_DECLARE_MODEL_SCORES(portable)
DOSA_DECLARE_MODEL_SCORES(avx2)
DOSA_DECLARE_MODEL_SCORES(avx512)
#undef DOSA_DECLARE_MODEL_SCORES
