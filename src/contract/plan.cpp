#include "dosa/plan.hpp"

#include <chrono>

#include "contract/backend.hpp"
#include "contract/text.hpp"
#include "contract/validate.hpp"
#include "cpu/dispatch.hpp"
#include "dosa/cuda.hpp"

namespace dosa {
namespace {

const detail::BackendTable& choose_backend(const Options& options, const Shape& shape, std::string& why) {
  const bool on_device = shape.device.kind != DeviceKind::cpu;
  const detail::BackendTable* const cuda = detail::cuda_backend();
  const bool asked = options.backend == Backend::cuda;
  if (asked || (options.backend == Backend::automatic && options.model == ScoreModel::sm90 && cuda != nullptr)) {
    if (cuda == nullptr)
      throw Error(ErrorKind::not_available,
                  text::format("backend cuda: {}; wanted a build with CUDA and a Hopper GPU", detail::cuda_why()));
    const std::string refusal = detail::cuda_refuses(shape, options);
    if (refusal.empty()) return *cuda;
    if (asked || on_device) throw Error(ErrorKind::not_available, text::format("backend cuda: {}", refusal));
    why = text::format("; not cuda: {}", refusal);
  }
  if (on_device)
    throw Error(
        ErrorKind::not_available,
        text::format("backend {}: found tensors on a device, wanted them in host memory", name(options.backend)));
  return options.backend == Backend::reference ? detail::reference_backend() : detail::cpu_backend();
}

}  // namespace

const Shape& Plan::shape() const noexcept { return state_->shape; }
const Options& Plan::options() const noexcept { return state_->options; }
std::size_t Plan::workspace_bytes() const noexcept { return state_->workspace_bytes; }
std::size_t Plan::carry_bytes() const noexcept { return state_->carry_bytes; }
std::string Plan::why() const { return state_->why; }

Plan plan(const Shape& shape, const Options& options) {
  detail::validate_shape(shape);
  detail::validate_options(options, shape);
  auto state = std::make_shared<detail::PlanState>();
  state->shape = shape;
  state->options = options;
  std::string not_cuda;
  state->backend = &choose_backend(options, shape, not_cuda);
  state->backend_asked = options.backend != Backend::automatic;
  state->options.backend = state->backend->backend;
  state->backend->plan(*state);
  state->why += not_cuda;
  Plan result;
  result.state_ = std::move(state);
  return result;
}

void run(const Plan& plan, const Problem& problem, const Selection& selection, std::span<std::byte> workspace,
         Carry carry, Stats* stats) {
  const detail::PlanState& state = plan.state();
  detail::validate_problem(problem, state.shape, state.options);
  detail::validate_selection(selection, state.shape, state.options);
  if (workspace.size() < state.workspace_bytes)
    throw Error(ErrorKind::bad_input,
                text::format("workspace: found {} bytes, wanted {} or more (Plan::workspace_bytes)", workspace.size(),
                             state.workspace_bytes));
  if (!carry.empty() && carry.size() < state.carry_bytes)
    throw Error(ErrorKind::bad_input,
                text::format("carry: found {} bytes, wanted none or {} or more (Plan::carry_bytes)", carry.size(),
                             state.carry_bytes));
  if (stats != nullptr && !stats->row_reports.empty() &&
      stats->row_reports.size() != static_cast<std::size_t>(state.shape.rows))
    throw Error(ErrorKind::bad_input, text::format("row_reports: found {} rows, wanted none or {}",
                                                   stats->row_reports.size(), state.shape.rows));
  const auto start = std::chrono::steady_clock::now();
  Stats counted;
  if (stats != nullptr) counted.row_reports.swap(stats->row_reports);
  state.backend->run(state, problem, selection, workspace, carry, counted);
  counted.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (stats != nullptr) *stats = std::move(counted);
}

void run_on_stream(const Plan& plan, const Problem& problem, const Selection& selection, void* workspace,
                   std::size_t workspace_bytes, void* stream) {
  const detail::PlanState& state = plan.state();
  if (state.backend->run_on_stream == nullptr || state.shape.device.kind != DeviceKind::cuda)
    throw Error(ErrorKind::bad_input,
                text::format("run_on_stream: found a plan of backend {} for {}, wanted backend cuda and device tensors",
                             name(state.backend->backend),
                             state.shape.device.kind == DeviceKind::cuda ? "a device" : "host memory"));
  detail::validate_problem(problem, state.shape, state.options);
  detail::validate_selection(selection, state.shape, state.options);
  if (workspace_bytes < state.workspace_bytes || (workspace == nullptr && state.workspace_bytes > 0))
    throw Error(ErrorKind::bad_input, text::format("workspace: found {} bytes, wanted {} or more of device memory",
                                                   workspace_bytes, state.workspace_bytes));
  state.backend->run_on_stream(state, problem, selection, workspace, stream);
}

void scores(const Problem& problem, const Options& options, TensorView<float, 2> out) {
  Options asked = options;
  asked.top_k = std::max<std::int64_t>(asked.top_k, 1);
  const Plan decided = plan(shape_of(problem), asked);
  const detail::PlanState& state = decided.state();
  detail::validate_problem(problem, state.shape, state.options);
  if (out.shape != std::array<std::int64_t, 2>{state.shape.rows, state.shape.keys} ||
      (out.absent() && state.shape.rows > 0 && state.shape.keys > 0))
    throw Error(ErrorKind::bad_input,
                text::format("scores: found shape [{}, {}]{}, wanted [{}, {}]", out.shape[0], out.shape[1],
                             out.absent() ? " without data" : "", state.shape.rows, state.shape.keys));
  state.backend->scores(state, problem, out);
}

OwnedSelection select(const Problem& problem, const Options& options) {
  const Plan decided = plan(shape_of(problem), options);
  OwnedSelection result;
  result.rows = decided.shape().rows;
  result.top_k = options.top_k;
  const auto cells = static_cast<std::size_t>(result.rows) * static_cast<std::size_t>(result.top_k);
  result.indices.resize(cells);
  result.lengths.resize(static_cast<std::size_t>(result.rows));
  if (options.scores) result.scores.resize(cells);
  Selection selection;
  selection.indices = TensorView<std::int32_t, 2>::contiguous(result.indices.data(), {result.rows, result.top_k});
  selection.lengths = TensorView<std::int32_t, 1>::contiguous(result.lengths.data(), {result.rows});
  if (options.scores)
    selection.scores = TensorView<float, 2>::contiguous(result.scores.data(), {result.rows, result.top_k});
  const std::size_t bytes = decided.workspace_bytes();
  // Left uninitialised: pages that a call does not need are never touched.
  const auto workspace = std::make_unique_for_overwrite<std::byte[]>(bytes);
  run(decided, problem, selection, {workspace.get(), bytes}, {}, &result.stats);
  return result;
}

Info info() {
  Info result;
  result.version = DOSA_VERSION;
  result.processor = cpu::processor_name();
  const cpu::Choice choice = cpu::choose(Isa::automatic);
  result.chosen = choice.kernels->isa;
  result.chosen_why = choice.why;
  result.isas = cpu::available_isas();
  result.backends = {{Backend::reference, true, "scores everything under the model and sorts; the oracle"},
                     {Backend::cpu, true, text::format("oneTBB; {} ({})", name(result.chosen), choice.by)},
                     {Backend::cuda, detail::cuda_backend() != nullptr, detail::cuda_why()}};
  Options options;
  options.top_k = 1;
  result.threads = plan({.rows = 0, .heads = 1, .head_dim = 32}, options).options().threads;
  return result;
}

}  // namespace dosa
