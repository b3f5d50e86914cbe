// Changes to an input whose effect on the answer is known without an oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "support/parity.hpp"
#include "support/rows.hpp"
#include "workloads/builder.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

/// A contiguous problem in plain arrays that a test may change.
struct Plain {
  std::int64_t rows, heads, dim, keys;
  std::vector<std::uint8_t> q, k;
  std::vector<float> weights, scales;
  std::vector<std::int32_t> ks, ke;

  explicit Plain(const workloads::Workload& workload) {
    const Problem& p = workload.problem;
    const auto& held = std::get<ContiguousKeys>(p.keys);
    rows = p.q.shape[0];
    heads = p.q.shape[1];
    dim = p.q.shape[2];
    keys = held.codes.shape[0];
    q.assign(p.q.data, p.q.data + rows * heads * dim);
    k.assign(held.codes.data, held.codes.data + keys * dim);
    weights.assign(p.weights.data, p.weights.data + rows * heads);
    scales.assign(held.scales.data, held.scales.data + keys);
    ks.assign(p.ks.data, p.ks.data + rows);
    ke.assign(p.ke.data, p.ke.data + rows);
  }
  [[nodiscard]] Problem problem() const {
    Problem p;
    p.q = TensorView<const std::uint8_t, 3>::contiguous(q.data(), {rows, heads, dim});
    p.weights = TensorView<const float, 2>::contiguous(weights.data(), {rows, heads});
    p.keys = ContiguousKeys{TensorView<const std::uint8_t, 2>::contiguous(k.data(), {keys, dim}),
                            TensorView<const float, 1>::contiguous(scales.data(), {keys})};
    p.ks = TensorView<const std::int32_t, 1>::contiguous(ks.data(), {rows});
    p.ke = TensorView<const std::int32_t, 1>::contiguous(ke.data(), {rows});
    return p;
  }
};

/// Calls `body` with the options of every backend, instruction set, path and model.
void for_all(std::int64_t top_k, const std::function<void(const Options&)>& body) {
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    Options options = top(top_k, Backend::reference);
    options.model = model;
    options.scores = true;
    options.order = Order::score;
    body(options);
    options.backend = Backend::cpu;
    for (const Isa isa : runnable_isas()) {
      for (const Path path : {Path::automatic, Path::dense, Path::dosa}) {
        options.isa = isa;
        options.path = path;
        body(options);
      }
    }
  }
}

Result run_plain(const Plain& plain, const Options& options) {
  const OwnedSelection owned = select(plain.problem(), options);
  return {owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
}

constexpr const char* kNames[] = {"indexer_like", "codes_heavy", "few_values_codes", "codes_straddling",
                                  "relu_plateau"};

workloads::Workload sized(const char* name) {
  const workloads::Entry& entry = workloads::find(name);
  workloads::Size size = entry.small;
  size.keys = 1200;
  size.rows = 5;
  return workloads::make(entry, size);
}

TEST(Metamorphic, PermutedKeysGiveThePermutedAnswer) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    Plain plain(workload);
    std::fill(plain.ks.begin(), plain.ks.end(), 0);
    std::fill(plain.ke.begin(), plain.ke.end(), static_cast<std::int32_t>(plain.keys));
    Plain permuted = plain;
    std::vector<std::int32_t> from(static_cast<std::size_t>(plain.keys));
    std::iota(from.begin(), from.end(), 0);
    workloads::Random(3).shuffle(from);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto source = static_cast<std::size_t>(from[i]);
      std::copy_n(plain.k.begin() + static_cast<std::ptrdiff_t>(source) * plain.dim, plain.dim,
                  permuted.k.begin() + static_cast<std::ptrdiff_t>(i) * plain.dim);
      permuted.scales[i] = plain.scales[source];
    }
    for_all(workload.top_k, [&](const Options& options) {
      const Result before = run_plain(plain, options), after = run_plain(permuted, options);
      EXPECT_EQ(before.lengths, after.lengths);
      // The scores come in the same descending order; keys above the last score are the same keys.
      for (std::int64_t t = 0; t < before.rows; ++t) {
        const auto first = static_cast<std::size_t>(t * before.top_k);
        const auto length = static_cast<std::size_t>(before.lengths[static_cast<std::size_t>(t)]);
        std::vector<std::int32_t> a, b;
        const float last = length == 0 ? 0 : before.scores[first + length - 1];
        for (std::size_t j = first; j < first + length; ++j) {
          ASSERT_EQ(before.scores[j], after.scores[j]) << name << " " << describe(options) << " row " << t;
          if (before.scores[j] > last) a.push_back(before.indices[j]);
          if (after.scores[j] > last) b.push_back(from[static_cast<std::size_t>(after.indices[j])]);
        }
        std::sort(a.begin(), a.end());
        std::sort(b.begin(), b.end());
        EXPECT_EQ(a, b) << name << " " << describe(options) << " row " << t;
      }
    });
  }
}

TEST(Metamorphic, AppendedLosersChangeNothing) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    const Plain plain(workload);
    Plain more = plain;
    more.keys += 777;
    more.k.resize(static_cast<std::size_t>(more.keys * more.dim));
    more.scales.resize(static_cast<std::size_t>(more.keys));
    workloads::Random random(4);
    for (std::int64_t i = plain.keys; i < more.keys; ++i) {
      // A copy of any key loses to the original by its larger index; a key whose scale is NaN is never selected.
      const std::int64_t source = random.below(plain.keys);
      std::copy_n(plain.k.begin() + source * plain.dim, plain.dim, more.k.begin() + i * plain.dim);
      more.scales[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
    }
    for (std::int32_t& last : more.ke) last = last == plain.keys ? static_cast<std::int32_t>(more.keys) : last;
    for_all(workload.top_k, [&](const Options& options) {
      EXPECT_EQ(difference(run_plain(plain, options), run_plain(more, options)), std::nullopt)
          << name << " " << describe(options);
    });
  }
}

TEST(Metamorphic, AppendedCopiesOfTheLastKeyLoseToIt) {
  const workloads::Workload workload = sized("indexer_like");
  Plain plain(workload);
  std::fill(plain.ke.begin(), plain.ke.end(), static_cast<std::int32_t>(plain.keys));
  Plain more = plain;
  more.keys = 2 * plain.keys;
  more.k.insert(more.k.end(), plain.k.begin(), plain.k.end());
  more.scales.insert(more.scales.end(), plain.scales.begin(), plain.scales.end());
  std::fill(more.ke.begin(), more.ke.end(), static_cast<std::int32_t>(more.keys));
  // Every key twice: the best 2 K of the doubled row are the best K of the row, each followed by its copy.
  for_all(workload.top_k, [&](const Options& options) {
    Options doubled = options;
    doubled.top_k = 2 * options.top_k;
    const Result once = run_plain(plain, options), twice = run_plain(more, doubled);
    for (std::int64_t t = 0; t < once.rows; ++t) {
      std::vector<std::int32_t> a, b;
      for (std::int64_t j = 0; j < once.top_k; ++j)
        a.push_back(once.indices[static_cast<std::size_t>(t * once.top_k + j)]);
      for (std::int64_t j = 0; j < twice.top_k; ++j) {
        const std::int32_t index = twice.indices[static_cast<std::size_t>(t * twice.top_k + j)];
        b.push_back(index % static_cast<std::int32_t>(plain.keys));
      }
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      b.erase(std::unique(b.begin(), b.end()), b.end());
      EXPECT_EQ(a, b) << describe(options) << " row " << t;
    }
  });
}

TEST(Metamorphic, PowersOfTwoScaleTheScoresAlone) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    const Plain plain(workload);
    for (const int exponent : {-20, -1, 3, 30}) {
      Plain weights = plain, scales = plain;
      for (float& w : weights.weights) w = std::ldexp(w, exponent);
      for (float& s : scales.scales) s = std::ldexp(s, exponent);
      for_all(workload.top_k, [&](const Options& options) {
        Result wanted = run_plain(plain, options);
        for (float& score : wanted.scores) score = std::ldexp(score, exponent);
        EXPECT_EQ(difference(wanted, run_plain(weights, options)), std::nullopt)
            << name << " weights " << describe(options);
        EXPECT_EQ(difference(wanted, run_plain(scales, options)), std::nullopt)
            << name << " scales " << describe(options);
      });
    }
  }
}

/// Any order of the dimensions inside a chunk of 32 (under f64: any order at all), both signs flipped together.
TEST(Metamorphic, PermutedDimensionsChangeNothing) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    const Plain plain(workload);
    for_all(workload.top_k, [&](const Options& options) {
      Plain permuted = plain;
      const std::int64_t span = options.model == ScoreModel::f64 ? plain.dim : 32;
      std::vector<std::int64_t> from(static_cast<std::size_t>(plain.dim));
      std::iota(from.begin(), from.end(), std::int64_t{0});
      workloads::Random random(6);
      for (std::int64_t chunk = 0; chunk < plain.dim; chunk += span)
        for (std::int64_t d = span - 1; d > 0; --d)
          std::swap(from[static_cast<std::size_t>(chunk + d)],
                    from[static_cast<std::size_t>(chunk + random.below(d + 1))]);
      const auto apply = [&](std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& source) {
        for (std::size_t r = 0; r < source.size() / from.size(); ++r)
          for (std::size_t d = 0; d < from.size(); ++d) {
            const auto flip = static_cast<std::uint8_t>(d % 3 == 0 ? 0x80 : 0);
            to[r * from.size() + d] = source[r * from.size() + static_cast<std::size_t>(from[d])] ^ flip;
          }
      };
      apply(permuted.q, plain.q);
      apply(permuted.k, plain.k);
      EXPECT_EQ(difference(run_plain(plain, options), run_plain(permuted, options)), std::nullopt)
          << name << " " << describe(options);
    });
  }
}

/// Heads of weight zero on finite dots add nothing (engines pad 16 heads to 32 or 64 so).
TEST(Metamorphic, PaddedHeadsChangeNoSelection) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    const Plain plain(workload);
    for (const std::int64_t extra : {1, 5, 16}) {
      Plain padded = plain;
      padded.heads += extra;
      padded.q.assign(static_cast<std::size_t>(padded.rows * padded.heads * padded.dim), 0);
      padded.weights.assign(static_cast<std::size_t>(padded.rows * padded.heads), 0.0F);
      workloads::Random random(8);
      for (std::uint8_t& code : padded.q) code = workloads::finite_code(random);
      for (std::int64_t t = 0; t < plain.rows; ++t) {
        std::copy_n(plain.q.begin() + t * plain.heads * plain.dim, plain.heads * plain.dim,
                    padded.q.begin() + t * padded.heads * padded.dim);
        std::copy_n(plain.weights.begin() + t * plain.heads, plain.heads, padded.weights.begin() + t * padded.heads);
      }
      for_all(workload.top_k, [&](const Options& options) {
        Result wanted = run_plain(plain, options), found = run_plain(padded, options);
        // Padding with +0 may turn a score of -0 into +0 under sm90; equal as numbers, so the selection stays.
        for (Result* result : {&wanted, &found})
          for (float& score : result->scores) score = score == 0 ? 0.0F : score;
        EXPECT_EQ(difference(wanted, found), std::nullopt) << name << " +" << extra << " " << describe(options);
      });
    }
  }
}

TEST(Metamorphic, SplitBatchesJoin) {
  for (const char* name : kNames) {
    const workloads::Workload workload = sized(name);
    for_all(workload.top_k, [&](const Options& options) {
      const OwnedSelection owned = select(workload.problem, options);
      const Result whole{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
      for (const auto& rows : {std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{2, 3, 4}}) {
        const PickedRows part(workload.problem, rows);
        const OwnedSelection of_part = select(part.problem(), options);
        const Result found{of_part.rows, of_part.top_k, of_part.indices, of_part.lengths, of_part.scores};
        EXPECT_EQ(difference(pick(whole, rows), found), std::nullopt) << name << " " << describe(options);
      }
    });
  }
}

}  // namespace
}  // namespace dosa::test
