#include "support/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "contract/text.hpp"
#include "score/score.hpp"

namespace dosa::test {
namespace {

struct Span {
  std::int64_t begin, end;  ///< visible keys, whole sequence
};

std::int64_t sequence_length(const Problem& problem, const Options& options) {
  return options.shard ? options.shard->total_keys : keys_of(problem);
}

Span visible(const Problem& problem, std::int64_t row, std::int64_t total) {
  const std::int64_t ks = problem.ks.data[row * problem.ks.strides[0]];
  const std::int64_t ke = problem.ke.data[row * problem.ke.strides[0]];
  if (ke <= ks) return {0, 0};
  const std::int64_t begin = ks < 0 ? 0 : ks;
  const std::int64_t end = ke > total ? total : ke;
  return end > begin ? Span{begin, end} : Span{0, 0};
}

std::int64_t request(const Problem& problem, std::int64_t row) {
  const auto* paged = std::get_if<PagedKeys>(&problem.keys);
  if (paged == nullptr) return 0;
  if (problem.row_request.data != nullptr) return problem.row_request.data[row * problem.row_request.strides[0]];
  const std::int64_t rows_per_request = problem.q.shape[0] / paged->block_table.shape[0];
  return row / rows_per_request;
}

std::int64_t slot(const PagedKeys& paged, std::int64_t of_request, std::int64_t key) {
  const std::int32_t page =
      paged.block_table
          .data[of_request * paged.block_table.strides[0] + key / paged.page_size * paged.block_table.strides[1]];
  return std::int64_t{page} * paged.page_size + key % paged.page_size;
}

float score_of(const Problem& problem, ScoreModel model, std::int64_t row, std::int64_t key) {
  const ScoreRow side{problem.q.data + row * problem.q.strides[0],
                      problem.q.strides[1],
                      problem.weights.data + row * problem.weights.strides[0],
                      problem.weights.strides[1],
                      static_cast<std::int32_t>(problem.q.shape[1]),
                      static_cast<std::int32_t>(problem.q.shape[2])};
  const std::uint8_t* codes = nullptr;
  float scale = 0;
  if (const auto* paged = std::get_if<PagedKeys>(&problem.keys)) {
    const std::int64_t where = slot(*paged, request(problem, row), key);
    const std::int64_t token = where % paged->page_size;
    const std::uint8_t* page = paged->cache + where / paged->page_size * paged->page_stride;
    codes = page + token * paged->head_dim;
    std::memcpy(&scale, page + std::int64_t{paged->page_size} * paged->head_dim + 4 * token, 4);
  } else {
    const auto& keys = std::get<ContiguousKeys>(problem.keys);
    codes = keys.codes.data + key * keys.codes.strides[0];
    scale = keys.scales.data[key * keys.scales.strides[0]];
  }
  return model == ScoreModel::f64 ? score_f64(side, codes, scale) : score_sm90(side, codes, scale);
}

}  // namespace

std::int64_t keys_of(const Problem& problem) {
  if (const auto* paged = std::get_if<PagedKeys>(&problem.keys)) return paged->block_table.shape[1] * paged->page_size;
  return std::get<ContiguousKeys>(problem.keys).codes.shape[0];
}

ScoreTable::ScoreTable(const Problem& problem, ScoreModel model, std::optional<Shard> shard) : keys_(keys_of(problem)) {
  const std::int64_t rows = problem.q.shape[0];
  const std::int64_t first_key = shard ? shard->first_key : 0;
  const std::int64_t total = shard ? shard->total_keys : keys_;
  scores_.assign(static_cast<std::size_t>(rows * keys_), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t t = 0; t < rows; ++t) {
    const Span window = visible(problem, t, total);
    for (std::int64_t j = 0; j < keys_; ++j) {
      const std::int64_t i = j + first_key;
      if (i >= window.begin && i < window.end)
        scores_[static_cast<std::size_t>(t * keys_ + j)] = score_of(problem, model, t, j);
    }
  }
}

Result expected(const Problem& problem, const Options& options, const ScoreTable& table) {
  struct Candidate {
    bool forced;
    float score;
    std::int64_t index;  // whole sequence
  };
  Result result;
  result.rows = problem.q.shape[0];
  result.top_k = options.top_k;
  result.indices.assign(static_cast<std::size_t>(result.rows * result.top_k), -1);
  result.lengths.assign(static_cast<std::size_t>(result.rows), 0);
  if (options.scores) result.scores.assign(result.indices.size(), -std::numeric_limits<float>::infinity());
  const std::int64_t total = sequence_length(problem, options);
  const std::int64_t first_key = options.shard ? options.shard->first_key : 0;
  const std::int64_t held = keys_of(problem);
  std::vector<Candidate> candidates;
  for (std::int64_t t = 0; t < result.rows; ++t) {
    const Span window = visible(problem, t, total);
    candidates.clear();
    for (std::int64_t i = std::max(window.begin, first_key); i < std::min(window.end, first_key + held); ++i) {
      const bool forced = i - window.begin < options.always_first || window.end - i <= options.always_last;
      const float score = forced ? std::numeric_limits<float>::infinity() : table.at(t, i - first_key);
      if (!std::isnan(score)) candidates.push_back({forced, score, i});
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      if (a.forced != b.forced) return a.forced;
      if (!a.forced && a.score != b.score) return a.score > b.score;
      return a.index < b.index;
    });
    if (static_cast<std::int64_t>(candidates.size()) > options.top_k)
      candidates.resize(static_cast<std::size_t>(options.top_k));
    if (options.order == Order::index) {
      std::sort(candidates.begin(), candidates.end(),
                [](const Candidate& a, const Candidate& b) { return a.index < b.index; });
    }
    result.lengths[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(candidates.size());
    for (std::size_t j = 0; j < candidates.size(); ++j) {
      std::int64_t written = candidates[j].index;
      if (options.index_base == IndexBase::window) written -= window.begin;
      if (options.index_base == IndexBase::slot)
        written = slot(std::get<PagedKeys>(problem.keys), request(problem, t), written - first_key);
      const std::size_t cell = static_cast<std::size_t>(t * result.top_k) + j;
      result.indices[cell] = static_cast<std::int32_t>(written);
      if (options.scores) result.scores[cell] = candidates[j].score;
    }
  }
  return result;
}

Result expected(const Problem& problem, const Options& options) {
  return expected(problem, options, ScoreTable(problem, options.model, options.shard));
}

std::optional<std::string> difference(const Result& wanted, const Result& found) {
  if (wanted.rows != found.rows || wanted.top_k != found.top_k)
    return text::format("found {} x {}, wanted {} x {}", found.rows, found.top_k, wanted.rows, wanted.top_k);
  if (wanted.scores.size() != found.scores.size())
    return text::format("found {} scores, wanted {}", found.scores.size(), wanted.scores.size());
  for (std::int64_t t = 0; t < wanted.rows; ++t) {
    const auto row = static_cast<std::size_t>(t);
    if (wanted.lengths[row] != found.lengths[row])
      return text::format("row {}: found length {}, wanted {}", t, found.lengths[row], wanted.lengths[row]);
    for (std::int64_t j = 0; j < wanted.top_k; ++j) {
      const auto cell = static_cast<std::size_t>(t * wanted.top_k + j);
      if (wanted.indices[cell] != found.indices[cell])
        return text::format("row {} slot {} (length {}): found index {}, wanted {}", t, j, wanted.lengths[row],
                            found.indices[cell], wanted.indices[cell]);
      if (wanted.scores.empty()) continue;
      const auto a = std::bit_cast<std::uint32_t>(wanted.scores[cell]);
      const auto b = std::bit_cast<std::uint32_t>(found.scores[cell]);
      if (a != b)
        return text::format("row {} slot {} index {}: found score {} ({:08x}), wanted {} ({:08x})", t, j,
                            wanted.indices[cell], found.scores[cell], b, wanted.scores[cell], a);
    }
  }
  return std::nullopt;
}

std::string describe(const Options& options) {
  std::string shard;
  if (options.shard) shard = text::format(" shard {} of {}", options.shard->first_key, options.shard->total_keys);
  return text::format("{} {} {} {} K={} order={} base={} first={} last={} scores={} threads={} r={}{}",
                      name(options.backend), name(options.isa), name(options.path), name(options.model), options.top_k,
                      name(options.order), name(options.index_base), options.always_first, options.always_last,
                      options.scores, options.threads, options.retained_heads, shard);
}

}  // namespace dosa::test
