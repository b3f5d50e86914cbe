// Loops over a sample of a row's keys, the same for every instruction set; `Lanes` names the registers. Unnamed
// namespace: see panel_kernels.hpp.
#pragma once

#include <cmath>

#include "cpu/kernels.hpp"

namespace dosa::cpu {
namespace {  // NOLINT(cert-dcl59-cpp,google-build-namespaces): one copy a file, see panel_kernels.hpp

template <class Lanes>
struct SampleLoops {
  using V = typename Lanes::Vector;
  static constexpr int width = Lanes::width;

  static void add_relu(float* out, const float* dots, float factor, int count) {
    const V f = Lanes::broadcast(factor);
    int s = 0;
    for (; s + width <= count; s += width)
      Lanes::store(out + s, Lanes::multiply_add(f, Lanes::relu(Lanes::load(dots + s)), Lanes::load(out + s)));
    for (; s < count; ++s) out[s] += factor * (dots[s] > 0 ? dots[s] : 0);
  }

  static void add(float* out, const float* dots, float factor, int count) {
    const V f = Lanes::broadcast(factor);
    int s = 0;
    for (; s + width <= count; s += width)
      Lanes::store(out + s, Lanes::multiply_add(f, Lanes::load(dots + s), Lanes::load(out + s)));
    for (; s < count; ++s) out[s] += factor * dots[s];
  }

  static float sum_of(V sum) {
    float lane[width];
    Lanes::store(lane, sum);
    float total = 0;
    for (const float x : lane) total += x;
    return total;
  }

  static float weighted_sum(const float* values, const float* weights, int count) {
    V even = Lanes::zero(), odd = even;
    int s = 0;
    for (; s + 2 * width <= count; s += 2 * width) {
      even = Lanes::multiply_add(Lanes::load(values + s), Lanes::load(weights + s), even);
      odd = Lanes::multiply_add(Lanes::load(values + s + width), Lanes::load(weights + s + width), odd);
    }
    float total = sum_of(Lanes::add(even, odd));
    for (; s < count; ++s) total += values[s] * weights[s];
    return total;
  }

  static double joint_square(const float* vectors, const float* weights, int count, int dim) {
    double total = 0;
    for (int j = 0; j < count; ++j) {
      for (int l = 0; l <= j; ++l) {
        V sum = Lanes::zero();
        for (int d = 0; d < dim; d += width)
          sum = Lanes::multiply_add(Lanes::load(vectors + j * dim + d), Lanes::load(vectors + l * dim + d), sum);
        const double term =
            std::fabs(static_cast<double>(weights[j]) * static_cast<double>(weights[l]) * double{sum_of(sum)});
        total += l < j ? 2 * term : term;
      }
    }
    return total;
  }

  static float survivors(const SampledBounds& keys, const float* aggregate, int count) {
    const V one = Lanes::broadcast(1.0F), half = Lanes::broadcast(0.5F), tie = Lanes::broadcast(1e-3F);
    V sum = Lanes::zero();
    int s = 0;
    for (; s + width <= count; s += width) {
      const V over = Lanes::subtract(Lanes::subtract(Lanes::load(keys.bound + s), Lanes::load(aggregate + s)),
                                     Lanes::load(keys.threshold + s));
      const V bands = Lanes::multiply(over, Lanes::load(keys.inverse + s));
      // The minimum of NaN and one is one.
      const V share = Lanes::maximum_or_second(Lanes::minimum(Lanes::add(bands, half), one), Lanes::zero());
      sum = Lanes::add(sum, Lanes::where_within(bands, tie, one, share));
    }
    float total = sum_of(sum);
    for (; s < count; ++s) {
      const float bands = (keys.bound[s] - aggregate[s] - keys.threshold[s]) * keys.inverse[s];
      const float share = bands + 0.5F;
      if (!(share < 1) || (bands <= 1e-3F && bands >= -1e-3F)) {
        total += 1;
      } else if (share > 0) {
        total += share;
      }
    }
    return total;
  }
};

}  // namespace
}  // namespace dosa::cpu
