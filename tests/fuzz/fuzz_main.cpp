// libFuzzer's entry, for the target named by DOSA_FUZZ_TARGET.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "fuzz/bodies.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (const auto bad = dosa::fuzz::DOSA_FUZZ_TARGET().run({data, size})) {
    std::fprintf(stderr, "%s: %s\n", dosa::fuzz::DOSA_FUZZ_TARGET().name, bad->c_str());
    std::abort();
  }
  return 0;
}

/// Writes the seeds into the first folder named, so that a run starts from the named workloads.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string_view argument = (*arguments)[i];
    if (argument.starts_with('-')) continue;
    const std::filesystem::path folder(argument);
    if (!std::filesystem::is_directory(folder)) return 0;  // a single input to reproduce
    int number = 0;
    for (const auto& seed : dosa::fuzz::DOSA_FUZZ_TARGET().seeds()) {
      std::ofstream out(folder / ("seed_" + std::to_string(number++)), std::ios::binary);
      out.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
    return 0;
  }
  return 0;
}
