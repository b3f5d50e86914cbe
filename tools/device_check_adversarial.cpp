// Small hard inputs through every kernel: what compute-sanitizer, which slows kernels down by a factor of a hundred,
// can run in a minute. Not part of a run of all sections: the others contain it.
#include "cuda/hardware.hpp"
#include "device_pairs.hpp"

namespace dosa::tools {

void check_adversarial(Tally& tally) {
  struct Input {
    const char* name;
    workloads::Size size;
  };
  // 17,000 keys: enough for predicted thresholds; 300 keys kept of 17,000 equal scores: buffers overflow.
  const Input inputs[] = {
      {"mixed_batch", {.rows = 5, .keys = 3000, .heads = 32, .head_dim = 128, .top_k = 300}},
      {"all_equal", {.rows = 2, .keys = 17000, .heads = 8, .head_dim = 64, .top_k = 300}},
      {"sorted_up", {.rows = 3, .keys = 17000, .heads = 40, .head_dim = 96, .top_k = 300}},
      {"windows_hostile", {.rows = 6, .keys = 700, .heads = 128, .head_dim = 32, .top_k = 64}},
      {"strided", {.rows = 5, .keys = 900, .heads = 8, .head_dim = 256, .top_k = 100}},
      {"shared_pages", {.rows = 6, .keys = 700, .heads = 32, .head_dim = 128, .top_k = 100}},
      {"nan_some", {.rows = 2, .keys = 900, .heads = 4, .head_dim = 32, .top_k = 100}},
  };
  const std::pair<const char*, cuda::Tuning> variants[] = {
      {"whole rows", {.chunks = 1}},
      {"3 pieces", {.chunks = 3}},
      {"plain loader", {.chunks = 2, .plain_loader = true}},
      {"few", {.few = 1}},
  };
  for (const Input& input : inputs) {
    const workloads::Workload made = workloads::make(workloads::find(input.name), input.size);
    const Shape shape = shape_of(made.problem);
    Options options;
    options.top_k = input.size.top_k;
    options.scores = true;
    options.always_first = 3;
    const OwnedSelection wanted = on(made.problem, options, Backend::cpu);
    HostMask mask(shape.rows, shape.keys);
    std::fill(mask.words.begin(), mask.words.end(), ~0U);
    for (const auto& [name, forced] : variants) {
      const Tuned tuned(forced);
      if (forced.few == 1 && !cuda::layout_of(shape, options, cuda::hardware().multiprocessors).few.applies()) continue;
      options.order = forced.chunks == 3 ? Order::score : Order::index;
      const OwnedSelection ordered = options.order == Order::index ? wanted : on(made.problem, options, Backend::cpu);
      tally.expect(text::format("{} ({})", input.name, name),
                   difference(ordered, on(made.problem, options, Backend::cuda)));
      ResidentPairs pairs(made.problem, options, mask);
      tally.expect(text::format("{} as pairs ({})", input.name, name), difference(ordered, pairs.run()));
    }
  }
  check_pages(tally, true);
}

}  // namespace dosa::tools
