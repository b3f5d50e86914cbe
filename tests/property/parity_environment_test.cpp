// The caller's rounding mode, flush-to-zero and denormals-are-zero change no byte, and are the caller's again
// afterwards.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include <cfenv>
#include <cstring>

#include "cpu/row_work.hpp"
#include "support/parity.hpp"
#include "workloads/workloads.hpp"

namespace dosa::test {
namespace {

constexpr unsigned kMasked = 0x1f80;  // all exceptions masked, round to nearest, subnormals kept
constexpr unsigned kFlush = 0x8040;   // FTZ and DAZ
constexpr unsigned kDown = 0x2000, kUp = 0x4000, kZero = 0x6000;

/// Sets MXCSR and the x87 rounding mode, puts both back.
class Hostile {
 public:
  explicit Hostile(unsigned mxcsr) : saved_(_mm_getcsr()), rounding_(std::fegetround()) {
    constexpr int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    std::fesetround(modes[(mxcsr >> 13U) & 3U]);
    _mm_setcsr(mxcsr);
  }
  ~Hostile() {
    std::fesetround(rounding_);
    _mm_setcsr(saved_);
  }
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;

 private:
  unsigned saved_;
  int rounding_;
};

constexpr unsigned kControlBits = 0xffc0;  // all but the sticky exception flags

class Environments : public testing::TestWithParam<unsigned> {};

TEST_P(Environments, ChangeNothingAndStay) {
  cpu::shortest_predicted = 1;
  const unsigned mxcsr = kMasked | GetParam();
  for (const char* name : {"indexer_like", "codes_straddling", "scales_tiny", "tiny_fp16", "weights_subnormal",
                           "exponent_ends", "threshold_ties", "scales_special"}) {
    const workloads::Entry& entry = workloads::find(name);
    workloads::Size size = entry.small;
    size.keys = full_sizes() ? 20000 : 1300;
    const workloads::Workload workload = workloads::make(entry, size);
    for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
      const ScoreTable table(workload.problem, model);
      const auto check = [&](const Options& options) {
        const Result wanted = expected(workload.problem, options, table);
        OwnedSelection owned;
        unsigned after = 0;
        {
          const Hostile hostile(mxcsr);
          owned = select(workload.problem, options);
          after = _mm_getcsr();
        }
        EXPECT_EQ(after & kControlBits, mxcsr & kControlBits) << describe(options);
        const Result found{owned.rows, owned.top_k, owned.indices, owned.lengths, owned.scores};
        EXPECT_EQ(difference(wanted, found), std::nullopt) << name << " " << describe(options);
      };
      Options options = top(workload.top_k);
      options.model = model;
      options.scores = true;
      check(options);
      options.backend = Backend::cpu;
      for (const Isa isa : runnable_isas()) {
        for (const Path path : {Path::dense, Path::dosa}) {
          for (const int threads : {1, 2, 7}) {
            options.isa = isa;
            options.path = path;
            options.threads = threads;
            options.order = threads == 2 ? Order::score : Order::index;
            check(options);
          }
        }
      }
    }
  }
}

TEST_P(Environments, ScoresKeepTheirBits) {
  const unsigned mxcsr = kMasked | GetParam();
  const workloads::Workload workload = workloads::make(workloads::find("scales_tiny"), {3, 200, 16, 64, 5, 1});
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (const Backend backend : {Backend::reference, Backend::cpu}) {
      Options options = top(5, backend);
      options.model = model;
      std::vector<float> calm(600), hostile_scores(600);
      const auto view = [](std::vector<float>& out) { return TensorView<float, 2>::contiguous(out.data(), {3, 200}); };
      scores(workload.problem, options, view(calm));
      unsigned after = 0;
      {
        const Hostile hostile(mxcsr);
        scores(workload.problem, options, view(hostile_scores));
        after = _mm_getcsr();
      }
      EXPECT_EQ(after & kControlBits, mxcsr & kControlBits);
      EXPECT_EQ(std::memcmp(calm.data(), hostile_scores.data(), calm.size() * sizeof(float)), 0) << name(model);
    }
  }
}

/// An error path must give the environment back too.
TEST_P(Environments, ErrorsKeepTheEnvironment) {
  const unsigned mxcsr = kMasked | GetParam();
  const workloads::Workload workload = workloads::make(workloads::find("codes_normal"), {3, 200, 16, 64, 5, 1});
  unsigned after = 0;
  {
    const Hostile hostile(mxcsr);
    EXPECT_THROW(static_cast<void>(select(workload.problem, top(0, Backend::cpu))), Error);
    after = _mm_getcsr();
  }
  EXPECT_EQ(after & kControlBits, mxcsr & kControlBits);
}

INSTANTIATE_TEST_SUITE_P(Mxcsr, Environments, testing::Values(kFlush, kDown, kUp, kZero, kFlush | kUp, kFlush | kDown),
                         [](const auto& parameters) { return "bits_" + std::to_string(parameters.param); });

}  // namespace
}  // namespace dosa::test
#endif
