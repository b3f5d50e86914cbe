#include <array>
#include <span>
#include <utility>

#include "contract/text.hpp"
#include "dosa/plan.hpp"
#include "dosa/types.hpp"

namespace dosa {
namespace {

template <class E>
using Word = std::pair<E, std::string_view>;

constexpr std::array kModels{Word<ScoreModel>{ScoreModel::f64, "f64"}, Word<ScoreModel>{ScoreModel::sm90, "sm90"}};
constexpr std::array kBackends{Word<Backend>{Backend::automatic, "auto"},
                               Word<Backend>{Backend::reference, "reference"}, Word<Backend>{Backend::cpu, "cpu"},
                               Word<Backend>{Backend::cuda, "cuda"}};
constexpr std::array kPaths{Word<Path>{Path::automatic, "auto"}, Word<Path>{Path::dense, "dense"},
                            Word<Path>{Path::dosa, "dosa"}};
constexpr std::array kIsas{
    Word<Isa>{Isa::automatic, "auto"}, Word<Isa>{Isa::portable, "portable"},     Word<Isa>{Isa::avx2, "avx2"},
    Word<Isa>{Isa::avx512, "avx512"},  Word<Isa>{Isa::avx512bf16, "avx512bf16"}, Word<Isa>{Isa::amx, "amx"}};
constexpr std::array kOrders{Word<Order>{Order::index, "index"}, Word<Order>{Order::score, "score"}};
constexpr std::array kBases{Word<IndexBase>{IndexBase::absolute, "absolute"},
                            Word<IndexBase>{IndexBase::window, "window"}, Word<IndexBase>{IndexBase::slot, "slot"}};
constexpr std::array kReasons{Word<RowReason>{RowReason::asked, "asked"},
                              Word<RowReason>{RowReason::measured, "measured gain"},
                              Word<RowReason>{RowReason::no_gain, "no gain predicted"},
                              Word<RowReason>{RowReason::short_window, "short window"},
                              Word<RowReason>{RowReason::not_finite, "constants not finite"},
                              Word<RowReason>{RowReason::too_many_survivors, "too many survivors"},
                              Word<RowReason>{RowReason::all_selected, "no key competes"}};

template <class E, std::size_t N>
std::string_view word_of(const std::array<Word<E>, N>& words, E value) noexcept {
  for (const auto& [known, word] : words)
    if (known == value) return word;
  return "?";
}

template <class E, std::size_t N>
E parse(const std::array<Word<E>, N>& words, std::string_view what, std::string_view found) {
  std::string accepted;
  for (const auto& [value, word] : words) {
    if (word == found) return value;
    accepted += accepted.empty() ? "" : ", ";
    accepted += word;
  }
  throw Error(ErrorKind::usage, text::format("{}: found '{}', wanted one of {}", what, found, accepted));
}

}  // namespace

std::string_view name(ScoreModel model) noexcept { return word_of(kModels, model); }
std::string_view name(Backend backend) noexcept { return word_of(kBackends, backend); }
std::string_view name(Path path) noexcept { return word_of(kPaths, path); }
std::string_view name(Isa isa) noexcept { return word_of(kIsas, isa); }
std::string_view name(Order order) noexcept { return word_of(kOrders, order); }
std::string_view name(IndexBase base) noexcept { return word_of(kBases, base); }
std::string_view name(RowReason reason) noexcept { return word_of(kReasons, reason); }

ScoreModel parse_score_model(std::string_view word) { return parse(kModels, "score model", word); }
Backend parse_backend(std::string_view word) { return parse(kBackends, "backend", word); }
Path parse_path(std::string_view word) { return parse(kPaths, "path", word); }
Isa parse_isa(std::string_view word) { return parse(kIsas, "instruction set", word); }
Order parse_order(std::string_view word) { return parse(kOrders, "order", word); }
IndexBase parse_index_base(std::string_view word) { return parse(kBases, "index base", word); }

}  // namespace dosa
