// plan() decides and declares, run() computes. plan() is a pure function of shapes and options; run() allocates nothing
// that grows with the problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dosa/device_counters.hpp"
#include "dosa/export.hpp"
#include "dosa/problem.hpp"
#include "dosa/types.hpp"

namespace dosa DOSA_PUBLIC {

/// What plan() may look at: sizes only.
struct Shape {
  std::int64_t rows = 0;      ///< Q
  std::int64_t heads = 0;     ///< H
  std::int64_t head_dim = 0;  ///< D
  std::int64_t keys = 0;      ///< N: keys of the view (paged: columns * P)
  bool paged = false;
  std::int64_t requests = 1;   ///< R (contiguous keys: 1)
  std::int64_t pages = 0;      ///< physical pages
  std::int32_t page_size = 0;  ///< P
  bool row_request = false;    ///< rows name their request one by one
  Device device{};
  friend bool operator==(const Shape&, const Shape&) = default;
};

/// Keys of one row split over calls, threads or ranks: this call holds keys first_key .. first_key + N - 1 of
/// total_keys. Windows, forced keys and written indices speak of the whole sequence.
struct Shard {
  std::int64_t first_key = 0;
  std::int64_t total_keys = 0;
  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Pieces of DoSA's certificate that can be switched off by name, to measure what each is worth. The result never
/// changes.
struct Ablation {
  bool projection = true;        ///< fold omitted positive heads onto anchors (T2)
  bool joint_residual = true;    ///< joint instead of separate residual norms (T3)
  bool centred = true;           ///< centred allowance (T4)
  bool half_linear = true;       ///< half of what the anchors leave goes into the aggregate rows, exactly (T4)
  bool aggregate = true;         ///< an aggregate of omitted negative heads, signs by likely winners (T5)
  bool second_aggregate = true;  ///< a second aggregate for the sampled keys that survive the first (T5)
  bool absolute_form = false;    ///< the absolute-value form (T6) instead of the relu form
  bool seeds = true;             ///< carried and voted seeds; off: best first alone finds the threshold
  bool best_first = true;        ///< score the keys with the largest bounds first (tau rises)
  bool narrow = true;            ///< screens by integers of a byte, where the instruction set has them (T11)
  bool prediction = true;        ///< the screen keeps keys above a threshold predicted from a sample (T9 d)
};

struct Options {
  std::int64_t top_k = 0;  ///< K >= 1; there is no default
  ScoreModel model = ScoreModel::f64;
  Backend backend = Backend::automatic;
  Path path = Path::automatic;
  Isa isa = Isa::automatic;  ///< automatic: DOSA_ISA from the environment, else the best there is
  Order order = Order::index;
  IndexBase index_base = IndexBase::absolute;
  std::int64_t always_first = 0;  ///< the first n visible keys rank before all others
  std::int64_t always_last = 0;   ///< the last m visible keys likewise
  bool scores = false;            ///< write scores
  int threads = 0;                ///< 0: as many as the process may use; a plan takes fewer where memory holds no more
  int retained_heads = 0;         ///< r of the certificate; 0: chosen for each row by measured survival
  std::optional<Shard> shard;
  Ablation ablation;
};

/// Why a row went the way it went.
enum class RowReason : std::uint8_t {
  asked,               ///< the caller named the path
  measured,            ///< the cost model predicted a gain from a sample of the row's keys
  no_gain,             ///< the cost model predicted none
  short_window,        ///< too few keys for a certificate to pay
  not_finite,          ///< constants of the row are not finite or may overflow: every key is scored under the model
  too_many_survivors,  ///< the screen kept so many keys that the row was scored dense after all
  all_selected,        ///< no key competes: the window holds no more than K, or forced keys fill all places
};
[[nodiscard]] std::string_view name(RowReason reason) noexcept;

/// What happened to one row.
struct RowReport {
  Path path = Path::dense;  ///< dense or dosa; rows that are not finite count as dense
  RowReason reason = RowReason::asked;
  std::int32_t retained_heads = 0;
  std::int32_t aggregates = 0;
  std::int64_t visible = 0;    ///< keys in the window
  std::int64_t survivors = 0;  ///< keys the screen could not reject (dense rows: visible)
  std::int64_t exact = 0;      ///< keys scored under the model
  std::int64_t seeds = 0;      ///< seeds that were visible and distinct
  float first_threshold = -std::numeric_limits<float>::infinity();  ///< tau before best first (-inf: no seeds)
  float threshold = -std::numeric_limits<float>::infinity();        ///< tau that the screen's survivors were taken with
  float last_score = std::numeric_limits<float>::quiet_NaN();  ///< exact score of the K-th key; NaN: was not needed
  float predicted = -std::numeric_limits<float>::infinity();   ///< the screen's first pass kept no bound below this
  bool rescreened = false;  ///< the threshold proved to be lower than `predicted`: the row was screened again
  double dot_products = 0;  ///< 128-wide (D-wide) dot products done, in units of one head and one key
};

/// Counters of one run; plain sums over rows, the same at every thread count except for timings. (Threads so many or
/// sequences so long that memory holds fewer rows at a time change whose winners are a row's seeds, and with them the
/// work that is counted.)
struct Stats {
  std::int64_t rows = 0, rows_dense = 0, rows_dosa = 0, rows_model = 0;
  std::int64_t rows_rescreened = 0;  ///< their predicted threshold was too high
  std::int64_t visible = 0, survivors = 0, exact = 0;
  double dot_products = 0;        ///< done
  double dense_dot_products = 0;  ///< visible * H
  double seconds = 0;
  std::optional<DeviceCounters> device;  ///< of the CUDA backend over host tensors; of nobody else
  std::vector<RowReport> row_reports;    ///< filled when sized Q by the caller
};

namespace detail {
struct PlanState;
}

/// A validated decision. Cheap to copy, immutable, usable from any thread.
class Plan {
 public:
  [[nodiscard]] const Shape& shape() const noexcept;
  [[nodiscard]] const Options& options() const noexcept;  ///< with nothing left automatic but the path
  [[nodiscard]] std::size_t workspace_bytes() const noexcept;
  [[nodiscard]] std::size_t carry_bytes() const noexcept;
  [[nodiscard]] std::string why() const;  ///< one sentence: backend, instruction set, threads, and the reason
  [[nodiscard]] const detail::PlanState& state() const noexcept { return *state_; }

 private:
  friend Plan plan(const Shape&, const Options&);
  std::shared_ptr<const detail::PlanState> state_;
};

/// Shape of a problem. Throws Error{bad_input} where tensors disagree about a size.
[[nodiscard]] Shape shape_of(const Problem& problem);

/// Decides backend, instruction set, threads and memory. Pure: equal arguments, equal plan (on one machine).
/// Throws Error{usage} for options out of range, {bad_input} for shapes out of range, {not_available} for a backend or
/// instruction set that is not there.
[[nodiscard]] Plan plan(const Shape& shape, const Options& options);

/// What a caller may keep between calls: opaque, optional, never trusted. Holds seeds today. At least
/// plan.carry_bytes().
using Carry = std::span<std::byte>;

/// Computes the selection. `workspace` has at least plan.workspace_bytes() bytes, any alignment. Throws
/// Error{bad_input} before anything is written where the problem does not match the plan or its values break the
/// contract.
void run(const Plan& plan, const Problem& problem, const Selection& selection, std::span<std::byte> workspace,
         Carry carry = {}, Stats* stats = nullptr);

/// Scores F32 [Q,N] under options.model, -inf outside each row's window; NaN is written as 0x7fffffff.
void scores(const Problem& problem, const Options& options, TensorView<float, 2> out);

/// plan + run with memory of its own.
struct OwnedSelection {
  std::int64_t rows = 0, top_k = 0;
  std::vector<std::int32_t> indices, lengths;
  std::vector<float> scores;
  Stats stats;
};
[[nodiscard]] OwnedSelection select(const Problem& problem, const Options& options);

/// What this build and this machine offer.
struct IsaInfo {
  Isa isa;
  bool available;
  std::string why;
};
struct BackendInfo {
  Backend backend;
  bool available;
  std::string why;
};
struct Info {
  std::string version, processor;
  int threads;
  std::vector<BackendInfo> backends;
  std::vector<IsaInfo> isas;
  Isa chosen;
  std::string chosen_why;
};
[[nodiscard]] Info info();

}  // namespace DOSA_PUBLIC
