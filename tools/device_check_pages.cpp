// Block tables and row_request that name what does not exist, on the device: such keys are not selectable, such rows
// are empty, the status word says so, and everything else is as if they had never been asked for.
#include <limits>
#include <set>

#include "device_pairs.hpp"

namespace dosa::tools {
namespace {

using cuda::Tuning;
using workloads::Random;

/// What the device is given, and what the CPU is given in its place: pages that do not exist become one whose scales
/// are NaN, rows of requests that do not exist become rows without keys.
struct Broken {
  Problem device, host;
  std::vector<std::int32_t> device_table, host_table, device_request, host_request, host_ks, host_ke;
  bool bad_request = false;  ///< some row's request does not exist
  bool must_report = false;  ///< a competing key's page does not exist
  bool may_report = false;   ///< a page between a request's first and last visible key does not exist
};

std::int64_t request_of_row(const Problem& problem, const Shape& shape, std::int64_t t) {
  return problem.row_request.absent() ? t / (shape.rows / shape.requests) : *problem.row_request.at(t);
}

bool exists(const PagedKeys& keys, std::int64_t request, std::int64_t key) {
  const std::int32_t page = *keys.block_table.at(request, key / keys.page_size);
  return page >= 0 && page < keys.pages;
}

void broken(Broken& out, Random& random, const Problem& problem, const Options& options, double share,
            bool outside_only) {
  const Shape shape = shape_of(problem);
  const auto& keys = std::get<PagedKeys>(problem.keys);
  const std::int64_t columns = keys.block_table.shape[1], page_size = keys.page_size;
  out.device = out.host = problem;
  // Pages between a request's first and last visible key, as the intact problem has them.
  std::vector<Window> hull(static_cast<std::size_t>(shape.requests), Window{shape.keys, 0});
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const Window window = window_of(*problem.ks.at(t), *problem.ke.at(t), shape.keys);
    if (window.size() == 0) continue;
    Window& mine = hull[static_cast<std::size_t>(request_of_row(problem, shape, t))];
    mine = {std::min(mine.first, window.first), std::max(mine.last, window.last)};
  }
  std::set<std::int32_t> used;
  for (std::int64_t r = 0; r < shape.requests; ++r)
    for (std::int64_t c = 0; c < columns; ++c) used.insert(*keys.block_table.at(r, c));
  std::int32_t spare = 0;  // the workloads leave some pages of NaN to nobody
  while (used.contains(spare)) ++spare;
  const auto wrong = [&]() -> std::int32_t {
    const std::int32_t values[] = {-1, std::numeric_limits<std::int32_t>::min(),
                                   std::numeric_limits<std::int32_t>::max(), static_cast<std::int32_t>(keys.pages),
                                   static_cast<std::int32_t>(keys.pages) + 1};
    return values[random.below(5)];
  };
  for (std::int64_t r = 0; r < shape.requests; ++r) {
    const Window& seen = hull[static_cast<std::size_t>(r)];
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int32_t page = *keys.block_table.at(r, c);
      const bool visible = c * page_size < seen.last && (c + 1) * page_size > seen.first;
      const bool breaks = visible ? !outside_only && random.chance(share) : random.chance(0.5);
      out.device_table.push_back(breaks ? wrong() : page);
      out.host_table.push_back(breaks && visible ? spare : page);
    }
  }
  const auto table = [&](const std::vector<std::int32_t>& values) {
    return TensorView<const std::int32_t, 2>::contiguous(values.data(), {shape.requests, columns});
  };
  std::get<PagedKeys>(out.device.keys).block_table = table(out.device_table);
  std::get<PagedKeys>(out.host.keys).block_table = table(out.host_table);
  for (std::int64_t t = 0; t < shape.rows; ++t)
    out.host_ks.push_back(*problem.ks.at(t)), out.host_ke.push_back(*problem.ke.at(t));
  if (!problem.row_request.absent()) {
    for (std::int64_t t = 0; t < shape.rows; ++t) {
      const std::int32_t request = *problem.row_request.at(t);
      out.device_request.push_back(request), out.host_request.push_back(request);
      if (outside_only || !random.chance(0.2)) continue;
      const std::int32_t values[] = {-1, static_cast<std::int32_t>(shape.requests),
                                     std::numeric_limits<std::int32_t>::max(),
                                     std::numeric_limits<std::int32_t>::min()};
      out.device_request.back() = values[random.below(4)];
      out.host_request.back() = 0;
      out.host_ks[static_cast<std::size_t>(t)] = out.host_ke[static_cast<std::size_t>(t)] = 0;
      out.bad_request = true;
    }
    out.device.row_request = TensorView<const std::int32_t, 1>::contiguous(out.device_request.data(), {shape.rows});
    out.host.row_request = TensorView<const std::int32_t, 1>::contiguous(out.host_request.data(), {shape.rows});
  }
  out.host.ks = TensorView<const std::int32_t, 1>::contiguous(out.host_ks.data(), {shape.rows});
  out.host.ke = TensorView<const std::int32_t, 1>::contiguous(out.host_ke.data(), {shape.rows});

  const auto& tables = std::get<PagedKeys>(out.device.keys);
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    const std::int64_t request = request_of_row(out.host, shape, t);
    const Window& seen = hull[static_cast<std::size_t>(request)];
    for (std::int64_t key = seen.first; key < seen.last; key += page_size - key % page_size)
      out.may_report = out.may_report || !exists(tables, request, key);
    const Window window = window_of(*out.host.ks.at(t), *out.host.ke.at(t), shape.keys);
    const Forced forced = forced_of(window, options.always_first, options.always_last);
    std::int64_t slots = options.top_k;
    for (std::int64_t key = window.first; key < window.last && slots > 0; ++key)
      if (forced.contains(key) && exists(tables, request, key)) --slots;
    if (slots == 0) continue;
    for (std::int64_t key = forced.head_last; key < forced.tail_first; ++key)
      out.must_report = out.must_report || !exists(tables, request, key);
  }
}

std::string status_difference(const Broken& problem, const DeviceCounters& counters) {
  const bool request = (counters.status & 1U) != 0, page = (counters.status & 2U) != 0;
  if (request != problem.bad_request)
    return text::format("status says {} about requests, wanted {}", request, problem.bad_request);
  if (problem.must_report && !page) return "status says nothing about pages, wanted that one does not exist";
  if (!problem.may_report && page) return "status says that a page does not exist, and all visible ones do";
  return "";
}

void check_broken(Tally& tally, Random& random, const workloads::Workload& made, double share, bool outside_only,
                  const std::string& what, std::size_t variant_count) {
  const Shape shape = shape_of(made.problem);
  const std::int64_t top_k = std::clamp<std::int64_t>(made.top_k, 1, cuda::kMaxTopK);
  const Options options = drawn_options(random, top_k, true);
  Broken problem;
  broken(problem, random, made.problem, options, share, outside_only);
  const std::vector<float> all = scores_by_cpu(problem.host);
  const auto& tables = std::get<PagedKeys>(problem.device.keys);
  const OwnedSelection wanted =
      select_existing(problem.host, options, all, [&](std::int64_t t, std::int64_t key, bool) {
        return exists(tables, request_of_row(problem.host, shape, t), key);
      });
  const std::vector<std::pair<std::string, Tuning>> variants = {
      {"planned", {}},
      {"whole rows", {.chunks = 1}},
      {"5 pieces", {.chunks = 5, .sample_keys = 2048}},
      {"plain loader", {.chunks = 1, .plain_loader = true}},
      {"plain, 3 pieces", {.chunks = 3, .plain_loader = true}}};
  for (std::size_t v = 0; v < std::min(variant_count, variants.size()); ++v) {
    const auto& [name, forced] = variants[v];
    const Tuned tuned(forced);
    Resident resident(problem.device, options);
    resident.queue(nullptr);
    cuda::check(cudaDeviceSynchronize(), "pages");
    tally.expect(text::format("{} ({})", what, name), difference(wanted, resident.fetch()));
    tally.expect(text::format("{} status ({})", what, name),
                 status_difference(problem, counters_of(resident.workspace)));
    HostMask mask(shape.rows, shape.keys);
    std::fill(mask.words.begin(), mask.words.end(), ~0U);
    ResidentPairs pairs(problem.device, options, mask);
    tally.expect(text::format("{} as pairs ({})", what, name), difference(wanted, pairs.run()));
    tally.expect(text::format("{} status of pairs ({})", what, name),
                 status_difference(problem, counters_of(pairs.workspace)));
    // All scores: NaN where the page does not exist.
    std::vector<float> found(all.size());
    const TensorView<float, 2> host = TensorView<float, 2>::contiguous(found.data(), {shape.rows, shape.keys});
    const TensorView<float, 2> matrix = resident.staging.output(host);
    Options asked = options;
    asked.backend = Backend::cuda;
    asked.model = ScoreModel::sm90;
    scores(resident.problem, asked, matrix);
    resident.staging.download(matrix, host);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      differ += std::bit_cast<std::uint32_t>(all[i]) != std::bit_cast<std::uint32_t>(found[i]) ? 1U : 0U;
    tally.expect(text::format("{} scores ({})", what, name),
                 differ == 0 ? "" : text::format("{} of {} scores", differ, all.size()));
  }
}

}  // namespace

void check_pages(Tally& tally, bool quick) {
  Random random(67);
  const std::size_t variants = quick ? 1 : 5;
  for (const char* name : {"paged_1", "paged_8", "paged_64", "paged_256", "shared_pages", "shared_pages_16", "next_n_1",
                           "next_n_3", "next_n_8"}) {
    for (const bool outside_only : {false, true}) {
      workloads::Size size = workloads::find(name).small;
      check_broken(tally, random, workloads::make(workloads::find(name), size), 0.1, outside_only,
                   text::format("pages {}{}", name, outside_only ? " unseen" : ""), variants);
      if (quick) continue;
      size.rows = 24, size.keys = 40000, size.heads = 32, size.head_dim = 128, size.top_k = 1024;
      check_broken(tally, random, workloads::make(workloads::find(name), size), 0.02, outside_only,
                   text::format("pages {} of 40,000{}", name, outside_only ? " unseen" : ""), variants);
    }
    // Every page gone.
    check_broken(tally, random, workloads::make(workloads::find(name), workloads::find(name).small), 1.0, false,
                 text::format("pages {} none", name), variants);
  }
}

}  // namespace dosa::tools
