#include "kernels/w4a8/product_ref.h"

#include <cmath>

#include "kernels/float16.h"

namespace gramian::w4a8::reference {
namespace {

int code_at(const Weights& weights, int64_t channel, int64_t k) {
  const int64_t in_panel = channel % kPanel, in_step = k % 32;
  const int64_t step = channel / kPanel * (weights.k / 32) + k / 32;
  const uint8_t byte = weights.codes[step * 256 + in_panel % 4 * 64 + in_panel / 4 * 16 + in_step % 16];
  return (in_step < 16 ? byte & 15 : byte >> 4) - 8;
}

int value(int code, float ratio) {
  const float exact = std::nearbyint(static_cast<float>(code) * ratio);
  return static_cast<int>(std::fmin(std::fmax(exact, -128.0f), 127.0f));
}

float ratio_at(const Weights& weights, int64_t channel, int64_t k) {
  if (weights.ratios == nullptr) return 16.0f;
  const int64_t group = channel / kPanel * (weights.k / kGroup) + k / kGroup;
  return f16_to_f32(weights.ratios[group * kPanel + channel % kPanel]);
}

}  // namespace

void multiply(const Weights& weights, int64_t first, int64_t count, const int8_t* q, int64_t rows,
              int32_t* acc) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < count; ++n) acc[m * count + n] = 0;
  }
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t k = 0; k < weights.k; ++k) {
      const int v = value(code_at(weights, first + n, k), ratio_at(weights, first + n, k));
      for (int64_t m = 0; m < rows; ++m) acc[m * count + n] += q[m * weights.k + k] * v;
    }
  }
}

}  // namespace gramian::w4a8::reference
