// Near-violations: a search for cases where a theorem's allowance is used up as far as possible. The worst found are
// data (near_violations/*.json) that every run replays; a certificate without the allowance must fail on them.
// DOSA_SEARCH_STEPS=N searches longer; DOSA_UPDATE_NEAR_VIOLATIONS=1 writes what is worse than the data.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "property/certificate_kernels.hpp"

namespace dosa::test {
namespace {

struct Target {
  const char* name;  ///< theorem and term, the data file's name
  Drop drop;         ///< the mutant that the data must kill
  std::function<Case(Random&)> start;
  bool exact = false;  ///< evaluate in real numbers: only the model's own error is left to be bounded

  [[nodiscard]] cpu::Arithmetic arithmetic(int dim) const {
    return exact ? cpu::Arithmetic{0, 0, 0} : scalar_arithmetic(dim);
  }
  [[nodiscard]] Interval evaluate(const cpu::FormSpec& spec, const Case& c) const {
    return exact ? test::evaluate<Real>(spec, c) : evaluate_scalar(spec, c);
  }
};

Case gaussian(Random& random, ScoreModel model, int heads, int dim) {
  Case c;
  c.model = model;
  c.heads = heads;
  c.dim = dim;
  c.retained = heads;
  for (int i = 0; i < heads * dim; ++i) c.q.push_back(nearest_code(normal(random) * 100));
  for (int d = 0; d < dim; ++d) c.key.push_back(nearest_code(normal(random) * 100));
  for (int h = 0; h < heads; ++h) c.weights.push_back(static_cast<float>(normal(random)));
  return c;
}

Case omitted_positives(Random& random, unsigned ablation) {
  Case c = gaussian(random, ScoreModel::f64, 3 + below(random, 3), 32);
  for (float& w : c.weights) w = std::fabs(w);
  c.retained = 1 + below(random, 2);
  c.ablation = ablation_of(ablation);
  // A key along what is left of the omitted heads uses the residual up.
  for (int d = 0; d < c.dim; ++d) {
    double sum = 0;
    for (int h = 1; h < c.heads; ++h)
      sum += static_cast<double>(code_value(c.q[static_cast<std::size_t>(h * c.dim + d)]));
    c.key[static_cast<std::size_t>(d)] = nearest_code(sum);
  }
  return c;
}

Case with_mean(Random& random, unsigned ablation) {
  Case c = omitted_positives(random, ablation);
  for (int d = 0; d < c.dim; ++d) {
    c.mean.push_back(code_value(c.key[static_cast<std::size_t>(d)]) + static_cast<float>(normal(random)));
  }
  return c;
}

/// Vectors of one large element and 31 that are `steps` steps of it as integers: rounded, they lose half a step each,
/// all in one direction; and one that is nothing but 31 equal elements.
Codes one_large(double steps, double step) {
  Codes codes(32, nearest_code(steps * step));
  codes[0] = nearest_code(448);
  return codes;
}
Codes all_but_first(double element) {
  Codes codes(32, nearest_code(element));
  codes[0] = 0;
  return codes;
}

Case both_sides(Case c) {
  c.dense = true;
  return c;
}

/// A positive head, retained, and one that is omitted, of the weight given: 0 where there shall be none.
Case narrow_case(Codes positive, Codes negative, float weight, Codes key) {
  Case c;
  c.narrow = true;
  c.heads = 2;
  c.retained = 1;
  c.q = std::move(positive);
  c.q.insert(c.q.end(), negative.begin(), negative.end());
  c.key = std::move(key);
  c.weights = {weight < 0 ? 0x1p-20F : 1.0F, weight};
  c.sides = ~std::uint64_t{0};
  return c;
}

const std::vector<Target>& targets() {
  static const std::vector<Target> list = {
      {"T2_anchor", Drop::residual, [](Random& random) { return omitted_positives(random, 1U); }},
      {"T3_joint", Drop::residual, [](Random& random) { return omitted_positives(random, 3U); }},
      {"T4_centred", Drop::residual, [](Random& random) { return with_mean(random, 7U); }},
      {"T4_mean", Drop::mean, [](Random& random) { return with_mean(random, 7U); }},
      {"T4_half", Drop::residual, [](Random& random) { return omitted_positives(random, 67U); }},
      {"T4_half_centred", Drop::residual, [](Random& random) { return with_mean(random, 71U); }},
      {"T4_half_mean", Drop::mean, [](Random& random) { return with_mean(random, 71U); }},
      {"T7_relu", Drop::evaluation,
       [](Random& random) {
         Case c = gaussian(random, ScoreModel::f64, 4, 128);
         c.dense = true;
         return c;
       }},
      {"T7_aggregate", Drop::evaluation,
       [](Random& random) {
         Case c = gaussian(random, ScoreModel::f64, 6, 128);
         for (int h = 1; h < c.heads; ++h)
           c.weights[static_cast<std::size_t>(h)] = -std::fabs(c.weights[static_cast<std::size_t>(h)]);
         c.weights[0] = std::fabs(c.weights[0]);
         c.retained = 1;
         c.sides = ~std::uint64_t{0};
         return c;
       }},
      {"T8_f64", Drop::model,
       [](Random& random) {
         Case c = gaussian(random, ScoreModel::f64, 3, 32);
         for (int h = 1; h < c.heads; ++h) copy_head(c, 0, h, 1);
         c.key = Codes(c.q.begin(), c.q.begin() + c.dim);
         c.weights = {0x1p60F, -1.0F, -0x1p60F};
         c.dense = true;
         return c;
       },
       true},
      {"T8_sm90", Drop::model,
       [](Random& random) {
         Case c = gaussian(random, ScoreModel::sm90, 2, 128);
         // One product of 2^16 and 31 small ones in each chunk: nearly every term loses bits.
         for (int i = 0; i < c.heads * c.dim; ++i) c.q[static_cast<std::size_t>(i)] = i % 32 == 0 ? 0x78 : 0x40;
         for (int d = 0; d < c.dim; ++d)
           c.key[static_cast<std::size_t>(d)] =
               static_cast<std::uint8_t>(d % 32 == 0 ? 0x78 : 0x4f + (random() % 2U) * 0x80U);
         c.dense = true;
         return c;
       }},
      // A step of the largest code is 4 as an integer of a byte, 2^-4 as an aggregate's.
      {"T11_rows", Drop::narrow_rows,
       [](Random&) { return narrow_case(one_large(0.5, 4), all_but_first(0), 0, all_but_first(14)); }},
      {"T11_aggregate", Drop::narrow_rows,
       [](Random&) { return narrow_case(all_but_first(-8), one_large(1.5, 0x1p-4), -1, all_but_first(14)); }},
      {"T11_key", Drop::narrow_key,
       [](Random&) { return narrow_case(all_but_first(14), all_but_first(0), 0, one_large(0.25, 4)); }},
      {"T11_key_aggregate", Drop::narrow_key,
       [](Random&) { return narrow_case(all_but_first(-8), all_but_first(14), -1, one_large(1.5, 4)); }},
      // The lower side: 1.5 steps of a row become 2, 3 of a key's steps of 4 become one.
      {"T11_rows_dense", Drop::narrow_rows,
       [](Random&) { return both_sides(narrow_case(one_large(1.5, 4), all_but_first(0), 0, all_but_first(14))); }},
      {"T11_key_dense", Drop::narrow_key,
       [](Random&) { return both_sides(narrow_case(all_but_first(14), all_but_first(0), 0, one_large(0.75, 4))); }},
      {"T11_key_joint", Drop::narrow_key,
       [](Random& random) {
         Case c = gaussian(random, ScoreModel::f64, 6, 32);
         for (float& w : c.weights) w = std::fabs(w);
         c.narrow = true;
         c.key = one_large(0.25, 4);
         return c;
       }},
  };
  return list;
}

/// Slack over allowance of the side that is used more; below 1: leaving the term out violates the bound on this case.
double unused(const Case& c, const Target& target) {
  const Drop drop = target.drop;
  const cpu::Arithmetic arithmetic = target.arithmetic(c.dim);
  const BuiltForm full = build(c, arithmetic), mutant = build(c, arithmetic, drop);
  if (!full.finite || !mutant.finite) return INFINITY;
  const float bits = c.score();
  const Interval a = target.evaluate(full.spec, c), b = target.evaluate(mutant.spec, c);
  if (!std::isfinite(bits) || !std::isfinite(a.upper) || !std::isfinite(a.lower)) return INFINITY;
  const auto share = [](double slack, double allowance) { return allowance > 0 ? slack / allowance : INFINITY; };
  double worst = share(static_cast<double>(a.upper) - static_cast<double>(bits),
                       static_cast<double>(a.upper) - static_cast<double>(b.upper));
  if (c.dense) {
    worst = std::min(worst, share(static_cast<double>(bits) - static_cast<double>(a.lower),
                                  static_cast<double>(b.lower) - static_cast<double>(a.lower)));
  }
  return worst;
}

Case neighbour(const Case& from, Random& random) {
  Case c = from;
  const int changes = 1 + below(random, 3);
  for (int i = 0; i < changes; ++i) {
    const auto k = static_cast<std::size_t>(below(random, c.dim));
    const auto q = static_cast<std::size_t>(below(random, c.heads * c.dim));
    const auto nudge = [&](std::uint8_t& code) {
      const int magnitude = std::clamp((code & 0x7f) + below(random, 9) - 4, 0, 0x7e);
      code = static_cast<std::uint8_t>((code & 0x80) | magnitude);
    };
    switch (below(random, 9)) {
      case 0:
        nudge(c.key[k]);
        break;
      case 1:
        nudge(c.q[q]);
        break;
      case 2:
        c.key[k] ^= 0x80U;
        break;
      case 3:
        c.q[q] ^= 0x80U;
        break;
      case 4:
        c.key[k] = any_finite_code(random);
        break;
      case 5:
        c.q[q] = any_finite_code(random);
        break;
      case 6:
        c.weights[static_cast<std::size_t>(below(random, c.heads))] *= static_cast<float>(0.5 + unit(random));
        break;
      case 7:
        c.key[k] = c.key[static_cast<std::size_t>(below(random, c.dim))];
        break;
      default:
        if (!c.mean.empty()) c.mean[k] += static_cast<float>(normal(random));
    }
  }
  return c;
}

std::filesystem::path data_file(const Target& target) {
  return std::filesystem::path(DOSA_SOURCE_DIR) / "tests/property/near_violations" /
         (std::string(target.name) + ".json");
}

std::vector<Case> stored(const Target& target) {
  std::vector<Case> cases;
  std::ifstream in(data_file(target));
  if (!in) return cases;
  for (const nlohmann::json& json : nlohmann::json::parse(in)) cases.push_back(from_json(json));
  return cases;
}

class NearViolation : public testing::TestWithParam<std::size_t> {
 protected:
  const Target& target_ = targets()[GetParam()];
};

TEST_P(NearViolation, DataHoldsAndKillsTheMutant) {
  const std::vector<Case> cases = stored(target_);
  ASSERT_FALSE(cases.empty()) << data_file(target_);
  int killed = 0;
  for (const Case& c : cases) {
    const BuiltForm full = build(c, target_.arithmetic(c.dim)),
                    mutant = build(c, target_.arithmetic(c.dim), target_.drop);
    ASSERT_TRUE(full.finite && mutant.finite);
    EXPECT_TRUE(holds(c, target_.evaluate(full.spec, c), c.score())) << to_json(c).dump();
    killed += holds(c, target_.evaluate(mutant.spec, c), c.score()) ? 0 : 1;
  }
  EXPECT_GT(killed, 0) << "a certificate without this term passes";
}

TEST_P(NearViolation, DataHoldsInEveryInstructionSet) {
  for (const cpu::Kernels* kernels : available_kernels()) {
    SCOPED_TRACE(name(kernels->isa));
    KernelRunner runner(*kernels);
    for (Case c : stored(target_)) {
      c.narrow = c.narrow && runner.narrow();
      const BuiltForm form = build(c, runner.arithmetic(c.dim));
      ASSERT_TRUE(form.finite);
      EXPECT_TRUE(holds(c, runner.evaluate(form, c), c.score())) << to_json(c).dump();
    }
  }
}

TEST_P(NearViolation, SearchFindsNoViolation) {
  const char* steps_text = std::getenv("DOSA_SEARCH_STEPS");
  const int asked = steps_text != nullptr ? std::atoi(steps_text) : 1500;
  const int steps = target_.exact ? asked / 10 : asked;
  const char* seed_text = std::getenv("DOSA_SEARCH_SEED");
  Random random(seed_text != nullptr ? static_cast<std::uint64_t>(std::atoll(seed_text)) : 7);
  std::vector<Case> starts = stored(target_);
  const std::size_t known = starts.size();
  double known_worst = INFINITY;
  for (const Case& c : starts) known_worst = std::min(known_worst, unused(c, target_));
  for (int i = 0; i < 3; ++i) starts.push_back(target_.start(random));

  std::vector<std::pair<double, Case>> found;
  for (Case current : starts) {
    double worst = unused(current, target_);
    for (int step = 0; step < steps; ++step) {
      Case next = neighbour(current, random);
      const double value = unused(next, target_);
      ASSERT_GE(value, 0) << target_.name << " is violated by " << to_json(next).dump();
      if (value <= worst) {
        worst = value;
        current = std::move(next);
      }
    }
    found.emplace_back(worst, std::move(current));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  RecordProperty("known_worst", std::to_string(known_worst));
  RecordProperty("found_worst", std::to_string(found.front().first));
  std::printf("%s: smallest unused share of the allowance %.4f (data %.4f)\n", target_.name, found.front().first,
              known_worst);
  if (std::getenv("DOSA_UPDATE_NEAR_VIOLATIONS") != nullptr && found.front().first < known_worst) {
    nlohmann::json json = nlohmann::json::array();
    for (std::size_t i = 0; i < std::min<std::size_t>(4, found.size()); ++i) {
      if (std::isfinite(found[i].first)) json.push_back(to_json(found[i].second));
    }
    std::ofstream(data_file(target_)) << json.dump(1) << "\n";
  }
  EXPECT_GT(known, 0U);
}

INSTANTIATE_TEST_SUITE_P(Certificate, NearViolation, testing::Range<std::size_t>(0, targets().size()),
                         [](const auto& target) { return std::string(targets()[target.param].name); });

}  // namespace
}  // namespace dosa::test
