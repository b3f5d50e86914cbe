// Certificates evaluated by the real kernels of one instruction set.
#pragma once

#include <memory>
#include <new>

#include "cpu/dispatch.hpp"
#include "cpu/float_environment.hpp"
#include "property/certificate_cases.hpp"
#include "support/emulated_tiles.hpp"

namespace dosa::test {

class KernelRunner {
 public:
  explicit KernelRunner(const cpu::Kernels& kernels) : kernels_(kernels) {}

  [[nodiscard]] cpu::Arithmetic arithmetic(int dim) const { return kernels_.arithmetic(dim); }
  [[nodiscard]] bool narrow() const { return kernels_.costs.narrow.block_rows > 0; }

  [[nodiscard]] Interval evaluate(const BuiltForm& built, const Case& c) {
    const cpu::FloatEnvironment environment;
    std::byte* panel_memory = reserve(panel_, kernels_.panel_bytes(c.dim, c.model));
    std::byte* form_memory =
        reserve(form_, kernels_.form_bytes(built.spec.relu_rows + built.spec.aggregate_rows, c.dim));
    cpu::Panel panel = kernels_.make_panel(panel_memory, c.dim, c.model);
    const ContiguousKeys keys{TensorView<const std::uint8_t, 2>::contiguous(c.key.data(), {1, c.dim}),
                              TensorView<const float, 1>::contiguous(&c.scale, {1})};
    const bool narrow = built.spec.narrow != nullptr;
    const float* const mean = c.mean.empty() || narrow ? nullptr : c.mean.data();
    kernels_.pack(KeySource(keys), nullptr, 0, 1, {c.model, mean, !narrow, narrow}, panel);
    const cpu::Form form = kernels_.make_form(built.spec, c.model, form_memory);
    alignas(64) float lower[64], upper[64];
    if (!c.dense) {
      kernels_.upper(form, panel, upper);
      return {-INFINITY, upper[0]};
    }
    kernels_.bounds(form, panel, lower, upper);
    return {lower[0], upper[0]};
  }

 private:
  struct Aligned {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  struct Buffer {
    std::unique_ptr<std::byte[], Aligned> memory;
    std::size_t size = 0;
  };
  static std::byte* reserve(Buffer& buffer, std::size_t bytes) {
    if (buffer.size < bytes) {
      buffer.memory.reset(new (std::align_val_t{64}) std::byte[bytes]);
      buffer.size = bytes;
    }
    return buffer.memory.get();
  }

  const cpu::Kernels& kernels_;
  Buffer panel_, form_;
};

/// Every instruction set that this machine has, and emulated tiles.
inline std::vector<const cpu::Kernels*> available_kernels() {
  std::vector<const cpu::Kernels*> kernels;
  for (const IsaInfo& isa : cpu::available_isas()) {
    if (isa.available) kernels.push_back(cpu::choose(isa.isa).kernels);
  }
  if (const cpu::Kernels* const emulated = emulated_tiles()) kernels.push_back(emulated);
  return kernels;
}

}  // namespace dosa::test
