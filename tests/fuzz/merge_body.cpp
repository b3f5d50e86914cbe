#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "contract/text.hpp"
#include "dosa/merge.hpp"
#include "fuzz/bodies.hpp"
#include "fuzz/reader.hpp"
#include "support/oracle.hpp"

namespace dosa::fuzz {
namespace {

struct Part {
  std::vector<std::int32_t> indices, lengths;
  std::vector<float> scores;
  std::int64_t width;
};

struct Claim {
  bool forced;
  float score;
  std::int64_t index;
};

/// Honest or not, merge() either refuses (and only where the input breaks its contract) or returns the best K claims.
std::optional<std::string> run(std::span<const std::uint8_t> bytes) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  Reader reader(bytes);
  const std::int64_t rows = reader.byte() % 4, total = reader.below(60), count = reader.byte() % 5;
  Options options = test::top(reader.byte() % 20 + 1);
  const std::uint8_t bits = reader.byte();
  options.order = (bits & 1U) != 0 ? Order::score : Order::index;
  options.scores = (bits & 2U) != 0;
  options.index_base = (bits & 4U) != 0 ? IndexBase::window : IndexBase::absolute;
  if ((bits & 8U) != 0) options.always_first = reader.byte() % 8;
  if ((bits & 16U) != 0) options.always_last = reader.byte() % 8;
  std::vector<std::int32_t> ks, ke;
  for (std::int64_t t = 0; t < rows; ++t) {
    ks.push_back(static_cast<std::int32_t>(reader.below(70)) - 4);
    ke.push_back(static_cast<std::int32_t>(reader.below(70)) - 4);
  }
  std::vector<Part> parts(static_cast<std::size_t>(count));
  constexpr float few[] = {0.0F, -0.0F, 1.0F, -1.0F, inf, -inf, 2.0F, 0.5F};
  for (Part& part : parts) {
    part.width = reader.byte() % 9;
    for (std::int64_t t = 0; t < rows; ++t) {
      // Mostly lengths that fit; now and then anything.
      const std::uint8_t length = reader.byte();
      part.lengths.push_back(length < 250 ? static_cast<std::int32_t>(length % (part.width + 1)) : length - 254);
      for (std::int64_t j = 0; j < part.width; ++j) {
        part.indices.push_back(static_cast<std::int32_t>(reader.byte() % 64) - 2);
        const std::uint8_t score = reader.byte();
        part.scores.push_back(score < 200 ? few[score % 8] : reader.real());
      }
    }
  }

  // What the contract says about this input.
  bool honest = true;
  test::Result wanted{rows, options.top_k, {}, {}, {}};
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto row = static_cast<std::size_t>(t);
    const std::int64_t first = std::max(ks[row], 0),
                       last = ke[row] > ks[row] ? std::min<std::int64_t>(ke[row], total) : first;
    std::vector<Claim> claims;
    std::set<std::int64_t> seen;
    for (const Part& part : parts) {
      if (part.lengths[row] < 0 || part.lengths[row] > part.width) {
        honest = false;
        continue;
      }
      for (std::int64_t j = 0; j < part.lengths[row]; ++j) {
        const auto cell = static_cast<std::size_t>(t * part.width + j);
        const std::int64_t index = part.indices[cell];
        honest =
            honest && index >= first && index < last && !std::isnan(part.scores[cell]) && seen.insert(index).second;
        const bool forced = index - first < options.always_first || last - index <= options.always_last;
        claims.push_back({forced, forced ? inf : part.scores[cell], index});
      }
    }
    if (!honest) break;
    std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
      if (a.forced != b.forced) return a.forced;
      if (!a.forced && a.score != b.score) return a.score > b.score;
      return a.index < b.index;
    });
    if (claims.size() > static_cast<std::size_t>(options.top_k)) claims.resize(static_cast<std::size_t>(options.top_k));
    if (options.order == Order::index)
      std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) { return a.index < b.index; });
    wanted.lengths.push_back(static_cast<std::int32_t>(claims.size()));
    for (std::size_t j = 0; j < static_cast<std::size_t>(options.top_k); ++j) {
      const bool filled = j < claims.size();
      const std::int64_t shift = options.index_base == IndexBase::window ? first : 0;
      wanted.indices.push_back(filled ? static_cast<std::int32_t>(claims[j].index - shift) : -1);
      if (options.scores) wanted.scores.push_back(filled ? claims[j].score : -inf);
    }
  }

  std::vector<Partial> partials;
  for (const Part& part : parts) {
    partials.push_back({TensorView<const std::int32_t, 2>::contiguous(part.indices.data(), {rows, part.width}),
                        TensorView<const std::int32_t, 1>::contiguous(part.lengths.data(), {rows}),
                        TensorView<const float, 2>::contiguous(part.scores.data(), {rows, part.width})});
  }
  const auto cells = static_cast<std::size_t>(rows * options.top_k);
  test::Result found{rows,
                     options.top_k,
                     std::vector<std::int32_t>(cells, 77),
                     std::vector<std::int32_t>(static_cast<std::size_t>(rows), 77),
                     {}};
  if (options.scores) found.scores.assign(cells, 77);
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(found.indices.data(), {rows, options.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(found.lengths.data(), {rows});
  if (options.scores) selection.scores = TensorView<float, 2>::contiguous(found.scores.data(), {rows, options.top_k});
  try {
    merge(partials, TensorView<const std::int32_t, 1>::contiguous(ks.data(), {rows}),
          TensorView<const std::int32_t, 1>::contiguous(ke.data(), {rows}), total, options, selection);
  } catch (const Error& error) {
    if (honest) return text::format("an honest input was refused: {}", error.what());
    if (error.kind() != ErrorKind::bad_input) return text::format("an error of the wrong kind: {}", error.what());
    // Bad input is refused before anything is written.
    for (const std::int32_t index : found.indices)
      if (index != 77) return "a part of a result was written before the error";
    for (const std::int32_t length : found.lengths)
      if (length != 77) return "a length was written before the error";
    return std::nullopt;
  }
  if (!honest) return "bad input was accepted";
  return test::difference(wanted, found);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (int i = 0; i < 24; ++i) {
    Bytes bytes{static_cast<std::uint8_t>(1 + i % 3), 0, 50,
                static_cast<std::uint8_t>(1 + i % 4), 9, static_cast<std::uint8_t>(i)};
    if ((i & 8) != 0) bytes.push_back(2);
    if ((i & 16) != 0) bytes.push_back(3);
    for (int t = 0; t < 1 + i % 3; ++t) bytes.insert(bytes.end(), {0, 4, 0, 60});
    std::uint8_t index = 2;
    for (int part = 0; part < 1 + i % 4; ++part) {
      bytes.push_back(4);
      for (int t = 0; t < 1 + i % 3; ++t) {
        bytes.push_back(4);
        for (int j = 0; j < 4; ++j) {
          bytes.push_back(static_cast<std::uint8_t>(index + part * 4 + j));
          bytes.push_back(static_cast<std::uint8_t>(j * 3 + part));
        }
      }
    }
    all.push_back(bytes);
  }
  return all;
}

}  // namespace

const Target& merge_target() {
  static constexpr Target target{"merge", run, seeds};
  return target;
}

}  // namespace dosa::fuzz
