// The AMX kernels over tiles in plain C++, for tests on machines without AMX.
#include "cpu/amx_emulated.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#include "cpu/amx_panels.hpp"

namespace dosa::cpu {
namespace {

/// What TDPBF16PS documents: even and odd members of the pairs summed apart, then together, then added to the
/// accumulator; subnormal inputs and results are zero, rounding is to nearest.
struct EmulatedTiles {
  struct State {
    std::uint32_t data[8][16][16];
    int rows;  // of the first operand and the accumulators; 0: not configured
  };
  static inline thread_local State state{};

  struct Session {
    Session() = default;
    ~Session() { state.rows = 0; }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    void use(int rows) {
      if (rows == state.rows) return;
      state = {};
      state.rows = rows;
    }
  };

  static int rows_of(int tile) {
    if (state.rows < 1 || state.rows > 16) __builtin_trap();  // as the processor would
    return tile <= 4 ? state.rows : 16;
  }
  static std::uint32_t bits_of(float x) {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float float_of(std::uint32_t bits) {
    float x = 0;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  static float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126F ? 0.0F : x; }
  static float member(std::uint32_t pair, bool odd) { return flushed(float_of(odd ? pair & 0xffff0000U : pair << 16)); }

  template <int tile>
  static void zero() {
    for (int r = 0; r < rows_of(tile); ++r) __builtin_memset(state.data[tile][r], 0, 64);
  }
  template <int tile>
  static void load(const void* from, std::size_t stride) {
    for (int r = 0; r < rows_of(tile); ++r) {
      __builtin_memcpy(state.data[tile][r], static_cast<const std::byte*>(from) + static_cast<std::size_t>(r) * stride,
                       64);
    }
  }
  template <int tile>
  static void store(void* to, std::size_t stride) {
    for (int r = 0; r < rows_of(tile); ++r) {
      __builtin_memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(r) * stride, state.data[tile][r], 64);
    }
  }
  template <int accumulator, int rows, int keys>
  static void multiply_add() {
    for (int m = 0; m < rows_of(accumulator); ++m) {
      for (int n = 0; n < 16; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < 16; ++k) {
          even = flushed(
              __builtin_fmaf(member(state.data[rows][m][k], false), member(state.data[keys][k][n], false), even));
          odd =
              flushed(__builtin_fmaf(member(state.data[rows][m][k], true), member(state.data[keys][k][n], true), odd));
        }
        std::uint32_t& sum = state.data[accumulator][m][n];
        sum = bits_of(flushed(float_of(sum) + flushed(even + odd)));
      }
    }
  }

  static std::int32_t byte_of(std::uint32_t word, int number) {
    return static_cast<std::int8_t>(word >> static_cast<unsigned>(8 * number) & 0xffU);
  }
  /// TDPBSSD.
  template <int accumulator, int rows, int keys>
  static void multiply_add_bytes() {
    for (int m = 0; m < rows_of(accumulator); ++m) {
      for (int n = 0; n < 16; ++n) {
        std::uint32_t& sum = state.data[accumulator][m][n];
        for (int k = 0; k < 16; ++k) {
          for (int i = 0; i < 4; ++i)
            sum += static_cast<std::uint32_t>(byte_of(state.data[rows][m][k], i) * byte_of(state.data[keys][k][n], i));
        }
      }
    }
  }
};

constexpr Kernels kEmulatedKernels = amx_table<EmulatedTiles>();

}  // namespace

const Kernels* amx_emulated_kernels() noexcept { return &kEmulatedKernels; }

}  // namespace dosa::cpu
#else
namespace dosa::cpu {
const Kernels* amx_emulated_kernels() noexcept { return nullptr; }
}  // namespace dosa::cpu
#endif
