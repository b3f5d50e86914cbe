#include "cpu/dispatch.hpp"

#include <cstdlib>
#include <cstring>

#include "contract/text.hpp"
#include "cpu/amx_permission.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dosa::cpu {

bool request_amx_permission() noexcept {
#if defined(__linux__) && defined(__x86_64__)
  static const bool granted = [] {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

namespace {

/// What keeps an instruction set from being used; empty where nothing does.
struct Machine {
  std::string processor = "unknown processor";
  std::string avx2, avx512, avx512bf16, amx;
};

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

/// The states that the operating system saves; 0 where it offers no XGETBV.
std::uint64_t saved_states(const Registers& leaf1) {
  if ((leaf1.ecx >> 27 & 1U) == 0) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

struct Bit {
  const char* name;
  unsigned word, bit;
  [[nodiscard]] bool set() const { return (word >> bit & 1U) != 0; }
};

template <std::size_t n>
std::string lacking(const Bit (&bits)[n]) {
  std::string names;
  for (const Bit& bit : bits) {
    if (!bit.set()) names += (names.empty() ? "" : ", ") + std::string(bit.name);
  }
  return names.empty() ? names : "the processor has no " + names;
}

void append(std::string& why, const std::string& more) {
  if (!more.empty()) why += (why.empty() ? "" : "; ") + more;
}

std::string brand() {
  if (cpuid(0x80000000U, 0).eax < 0x80000004U) return "unknown x86-64 processor";
  char text[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002U + i, 0);
    const unsigned words[4] = {r.eax, r.ebx, r.ecx, r.edx};
    std::memcpy(text + 16 * i, words, sizeof words);
  }
  std::string name = text;
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "unknown x86-64 processor" : name;
}

Machine look() {
  const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0);
  const std::uint64_t states = saved_states(leaf1);
  const auto saved = [states](std::uint64_t mask) { return (states & mask) == mask; };
  constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  Machine machine;
  machine.processor = brand();

  machine.avx2 =
      lacking({{"AVX2", leaf7.ebx, 5}, {"FMA", leaf1.ecx, 12}, {"F16C", leaf1.ecx, 29}, {"BMI2", leaf7.ebx, 8}});
  if (!saved(kYmm)) append(machine.avx2, "the operating system does not save the AVX registers");

  machine.avx512 = machine.avx2;
  append(machine.avx512, lacking({{"AVX512F", leaf7.ebx, 16},
                                  {"AVX512DQ", leaf7.ebx, 17},
                                  {"AVX512BW", leaf7.ebx, 30},
                                  {"AVX512VL", leaf7.ebx, 31}}));
  if (!saved(kZmm)) append(machine.avx512, "the operating system does not save the AVX-512 registers");

  machine.avx512bf16 = machine.avx512;
  append(machine.avx512bf16, lacking({{"AVX512_BF16", cpuid(7, 1).eax, 5}}));

  machine.amx = machine.avx512;
  append(machine.amx, lacking({{"AVX512_VBMI", leaf7.ecx, 1},
                               {"AVX512_VNNI", leaf7.ecx, 11},
                               {"AMX-TILE", leaf7.edx, 24},
                               {"AMX-INT8", leaf7.edx, 25},
                               {"AMX-BF16", leaf7.edx, 22}}));
  if (!saved(kTiles)) {
    append(machine.amx, "the operating system does not save the tile registers");
  } else if (machine.amx.empty() && !request_amx_permission()) {
    append(machine.amx, "the kernel refused the tile permission (arch_prctl ARCH_REQ_XCOMP_PERM)");
  }
  return machine;
}

#else

Machine look() {
  const std::string other = "the processor is not an x86-64";
  return {"unknown processor", other, other, other, other};
}

#endif

const Machine& machine() {
  static const Machine seen = look();
  return seen;
}

const Kernels* table(Isa isa) {
  switch (isa) {
    case Isa::amx:
      if (const Kernels* const stand_in = tiles_stand_in.load(std::memory_order_acquire)) return stand_in;
      return amx_kernels();
    case Isa::avx512bf16:
      return avx512bf16_kernels();
    case Isa::avx512:
      return avx512_kernels();
    case Isa::avx2:
      return avx2_kernels();
    case Isa::portable:
      return portable_kernels();
    case Isa::automatic:
      break;
  }
  return nullptr;
}

/// Empty where the instruction set can be used.
std::string obstacle(Isa isa) {
  if (table(isa) == nullptr) return "this build has no code for it";
  switch (isa) {
    case Isa::amx:
      return tiles_stand_in.load(std::memory_order_acquire) != nullptr ? std::string() : machine().amx;
    case Isa::avx512bf16:
      return machine().avx512bf16;
    case Isa::avx512:
      return machine().avx512;
    case Isa::avx2:
      return machine().avx2;
    default:
      return {};
  }
}

std::string offer(Isa isa) {
  switch (isa) {
    case Isa::amx:
      return "tiles of bf16 and of bytes (AMX-TILE, AMX-BF16, AMX-INT8), the rest AVX-512";
    case Isa::avx512bf16:
      return "bf16 pairs, 16 lanes (AVX512_BF16), the rest AVX-512";
    case Isa::avx512:
      return "F32 multiply-add, 16 lanes (AVX512F, BW, VL, DQ)";
    case Isa::avx2:
      return "F32 multiply-add, 8 lanes (AVX2, FMA, F16C, BMI2)";
    default:
      return "F32, the compiler's baseline for this target";
  }
}

std::string available_names() {
  std::string names;
  for (const Isa isa : best_first(machine().processor)) {
    if (obstacle(isa).empty()) names.append(names.empty() ? "" : ", ").append(name(isa));
  }
  return names;
}

std::string described(Isa isa, const std::string& by) { return text::format("{} ({}): {}", name(isa), by, offer(isa)); }

}  // namespace

std::atomic<const Kernels*> tiles_stand_in{nullptr};

std::span<const Isa> best_first(std::string_view processor) {
  static constexpr Isa kIntel[] = {Isa::amx, Isa::avx512, Isa::avx512bf16, Isa::avx2, Isa::portable};
  static constexpr Isa kOthers[] = {Isa::amx, Isa::avx512bf16, Isa::avx512, Isa::avx2, Isa::portable};
  return processor.find("Intel") != std::string_view::npos ? std::span<const Isa>(kIntel) : kOthers;
}

Choice choose(Isa asked) {
  std::string by = "asked for";
  if (asked == Isa::automatic) {
    const char* word = std::getenv("DOSA_ISA");
    if (word != nullptr && *word != '\0') {
      try {
        asked = parse_isa(word);
      } catch (const Error& error) {
        throw Error(error.kind(), std::string("DOSA_ISA: ") + error.what());
      }
      by = "DOSA_ISA";
    }
  }
  if (asked != Isa::automatic) {
    const std::string missing = obstacle(asked);
    if (!missing.empty())
      throw Error(ErrorKind::not_available,
                  text::format("{}found {}, wanted an instruction set of this machine ({}): {}",
                               by == "DOSA_ISA" ? "DOSA_ISA: " : "", name(asked), available_names(), missing));
    return {table(asked), described(asked, by), by};
  }
  std::string passed;
  for (const Isa isa : best_first(machine().processor)) {
    const std::string missing = obstacle(isa);
    if (missing.empty()) {
      by = "the best available";
      return {table(isa), described(isa, by) + passed, by};
    }
    passed.append("; not ").append(name(isa)).append(": ").append(missing);
  }
  throw Error(ErrorKind::internal, "no instruction set is available, not even portable code");
}

std::vector<IsaInfo> available_isas() {
  std::vector<IsaInfo> isas;
  for (const Isa isa : best_first(machine().processor)) {
    const std::string missing = obstacle(isa);
    isas.push_back({isa, missing.empty(), missing.empty() ? offer(isa) : missing});
  }
  return isas;
}

std::string processor_name() { return machine().processor; }

}  // namespace dosa::cpu
