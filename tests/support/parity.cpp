#include "support/parity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "contract/text.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/row_work.hpp"
#include "support/rows.hpp"

namespace dosa::test {

bool full_sizes() {
  const char* value = std::getenv("DOSA_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

bool slow_build() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

std::uint64_t test_seed() {
  const char* value = std::getenv("DOSA_TEST_SEED");
  return value == nullptr ? 0 : std::strtoull(value, nullptr, 10) * 0x9e3779b97f4a7c15ULL;
}

std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (const IsaInfo& isa : cpu::available_isas())
    if (isa.available) isas.push_back(isa.isa);
  return isas;
}

Parity::Parity(const Problem& problem, std::int64_t top_k, std::string what)
    : problem_(problem), top_k_(top_k), what_(std::move(what)) {
  cpu::shortest_predicted = 1;
  tables_.emplace_back(problem_, ScoreModel::f64);
  tables_.emplace_back(problem_, ScoreModel::sm90);
}

const ScoreTable& Parity::table(ScoreModel model) { return tables_[model == ScoreModel::f64 ? 0 : 1]; }

void Parity::run_drawn(const Options& fixed, workloads::Random& random) {
  const auto* paged = std::get_if<PagedKeys>(&problem_.keys);
  const std::int64_t rows = problem_.q.shape[0], heads = problem_.q.shape[1];
  Options options = fixed;
  options.top_k = random.chance(0.7) ? top_k_ : random.below(2 * top_k_) + 1;
  options.order = random.chance(0.5) ? Order::index : Order::score;
  const std::int64_t base = random.below(paged != nullptr ? 3 : 2);
  options.index_base = base == 0 ? IndexBase::absolute : base == 1 ? IndexBase::window : IndexBase::slot;
  options.scores = random.chance(0.5);
  if (random.chance(0.25)) {
    options.always_first = random.below(top_k_ / 2 + 2);
    options.always_last = random.below(top_k_ + 2);
  }
  constexpr int threads[] = {1, 2, 7};
  options.threads = threads[random.below(3)];
  if (random.chance(0.25)) options.retained_heads = static_cast<int>(random.below(heads + 1));
  if (random.chance(0.4)) {
    Ablation& ablation = options.ablation;
    for (bool* piece : {&ablation.projection, &ablation.joint_residual, &ablation.centred, &ablation.aggregate,
                        &ablation.second_aggregate, &ablation.half_linear, &ablation.absolute_form, &ablation.seeds,
                        &ablation.best_first, &ablation.prediction, &ablation.narrow})
      *piece = random.chance(0.6);
  }

  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const bool reordered = random.chance(0.5);
  if (reordered) random.shuffle(order);
  if (reordered && random.chance(0.3)) order.push_back(order.front());

  const auto side = random.chance(0.5) ? GuardedBuffer::Side::end : GuardedBuffer::Side::begin;
  const auto misalignment = static_cast<std::size_t>(random.below(16));
  Surroundings around{side, static_cast<std::size_t>(random.below(64)), static_cast<std::uint8_t>(random.bits()),
                      random.below(5), nullptr};

  const Result wanted_in_order = expected(problem_, options, table(options.model));
  const Result wanted = reordered ? pick(wanted_in_order, order) : wanted_in_order;
  const std::string what = text::format("{}: {}{} misaligned by {}", what_, describe(options),
                                        reordered ? " rows reordered" : "", misalignment);

  const auto run_on = [&](const Problem& problem) {
    if (random.chance(0.5)) {
      // The carry of whatever ran before, now and then with bytes of noise.
      carry_.resize(plan(shape_of(problem), options).carry_bytes());
      for (std::int64_t hit = random.below(8); hit > 4 && !carry_.empty(); --hit)
        carry_[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(carry_.size())))] =
            static_cast<std::byte>(random.bits());
      around.carry = &carry_;
    }
    const GuardedProblem guarded(problem, side, misalignment);
    const Result found = run_guarded(guarded.problem(), options, what, around);
    if (const auto bad = difference(wanted, found)) ADD_FAILURE() << what << ": " << *bad;
    if (const auto bad = guarded.damage()) ADD_FAILURE() << what << ": an input: " << *bad;
  };
  if (reordered) {
    const PickedRows picked(problem_, order);
    run_on(picked.problem());
  } else {
    run_on(problem_);
  }
}

void Parity::run_all(workloads::Random& random, int draws) {
  const std::vector<Isa> isas = runnable_isas();
  for (const ScoreModel model : {ScoreModel::f64, ScoreModel::sm90}) {
    for (int draw = 0; draw < draws; ++draw) {
      Options fixed;
      fixed.model = model;
      fixed.backend = Backend::reference;
      run_drawn(fixed, random);
      fixed.backend = Backend::cpu;
      for (const Isa isa : isas) {
        for (const Path path : {Path::automatic, Path::dense, Path::dosa}) {
          fixed.isa = isa;
          fixed.path = path;
          run_drawn(fixed, random);
          if (testing::Test::HasFailure()) return;  // one difference says it all
        }
      }
    }
  }
}

void Parity::run_exactly(const Options& options, const Surroundings& around) {
  const Result found = run_guarded(problem_, options, what_, around);
  if (const auto bad = difference(expected(problem_, options, table(options.model)), found))
    ADD_FAILURE() << what_ << ": " << describe(options) << ": " << *bad;
}

}  // namespace dosa::test
