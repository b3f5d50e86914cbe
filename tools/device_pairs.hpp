// Sparse pairs on the device: masks from the host, and runs of src/cuda/refine.hpp.
#pragma once

#include "cuda/refine.hpp"
#include "device_check.hpp"

namespace dosa::tools {

/// A mask in host memory, as PairMask lays it out.
struct HostMask {
  HostMask(std::int64_t rows, std::int64_t keys, std::int64_t gap = 0)
      : row_words(cuda::mask_words(keys) + gap), words(static_cast<std::size_t>(rows * row_words)) {}
  [[nodiscard]] bool has(std::int64_t t, std::int64_t key) const {
    return ((words[static_cast<std::size_t>(t * row_words + key / 32)] >> (key % 32)) & 1U) != 0;
  }
  void set(std::int64_t t, std::int64_t key, bool value) {
    std::uint32_t& word = words[static_cast<std::size_t>(t * row_words + key / 32)];
    const std::uint32_t bit = 1U << (key % 32);
    word = value ? word | bit : word & ~bit;
  }
  std::int64_t row_words;
  std::vector<std::uint32_t> words;
};

/// A device problem, its pairs and its outputs. Planned under the tuning that is in force; run under the same.
struct ResidentPairs {
  ResidentPairs(const Problem& host, const Options& asked, const HostMask& mask) : resident(host, asked) {
    bytes = cuda::refine_workspace_bytes(*resident.decided);
    workspace = resident.staging.allocate(bytes);
    // What a workspace and outputs hold before a run must not matter.
    cuda::check(cudaMemset(workspace, 0xff, bytes), "workspace");
    const auto poison = [](auto* data, std::size_t count) {
      if (data != nullptr) cuda::check(cudaMemset(data, 0x5a, count * 4), "outputs");
    };
    poison(resident.selection.indices.data, resident.result.indices.size());
    poison(resident.selection.lengths.data, resident.result.lengths.size());
    poison(resident.selection.scores.data, resident.result.scores.size());
    words = static_cast<std::uint32_t*>(resident.staging.allocate(mask.words.size() * 4));
    pairs = {words, mask.row_words};
    put(mask);
  }
  void put(const HostMask& mask) {
    cuda::check(cudaMemcpy(words, mask.words.data(), mask.words.size() * 4, cudaMemcpyHostToDevice), "mask");
  }
  void queue(cudaStream_t stream) {
    cuda::refine_on_stream(*resident.decided, resident.problem, pairs, resident.selection, workspace, bytes, stream);
  }
  const OwnedSelection& run() {
    queue(nullptr);
    cuda::check(cudaDeviceSynchronize(), "pairs");
    return resident.fetch();
  }
  Resident resident;
  std::uint32_t* words = nullptr;
  cuda::PairMask pairs;
  void* workspace = nullptr;
  std::size_t bytes = 0;
};

}  // namespace dosa::tools
