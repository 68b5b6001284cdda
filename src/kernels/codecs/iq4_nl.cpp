// Bytes of a block: h d, 16 bytes q; d * kLevels[q], low nibble weight j, high nibble weight j + 16.
#include "kernels/codecs/iq4_nl.h"

#include <cmath>

#include "kernels/codecs/fit.h"
#include "kernels/codecs/rounding.h"

namespace gramian {
namespace {

constexpr int kBlock = 32, kBytes = 18, kTop = 15, kSteps = 7;
constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The nearest level; of two equally near ones the upper.
int nearest_level(float value) noexcept {
  if (value <= kLevels[0]) return 0;
  if (value >= kLevels[kTop]) return kTop;
  int upper = 1;
  while (upper < kTop && !(value < kLevels[upper])) ++upper;
  return value - kLevels[upper - 1] < kLevels[upper] - value ? upper - 1 : upper;
}

// The scale with the largest projection over candidates near the one that gives the largest value the lowest level.
float find_scale(const float* x, const float* w) noexcept {
  float largest = 0, value = 0;
  for (int j = 0; j < kBlock; ++j) {
    if (std::fabs(x[j]) > largest) largest = std::fabs(x[j]), value = x[j];
  }
  if (largest < kZeroRun) return 0;
  float sum_qx = 0, sum_qq = 0;
  const auto try_inverse = [&](float inverse) {
    sum_qx = sum_qq = 0;
    for (int j = 0; j < kBlock; ++j) {
      const float q = kLevels[nearest_level(inverse * x[j])];
      sum_qx += w[j] * q * x[j];
      sum_qq += w[j] * q * q;
    }
  };
  try_inverse(1 / (-value / kLevels[0]));
  float d = sum_qq > 0 ? sum_qx / sum_qq : 0;  // weights may be zeros
  float best = d * sum_qx;
  for (int step = -kSteps; step <= kSteps; ++step) {
    try_inverse((static_cast<float>(step) + kLevels[0]) / value);
    if (!(sum_qq > 0 && sum_qx * sum_qx > best * sum_qq)) continue;
    d = sum_qx / sum_qq;
    best = d * sum_qx;
  }
  return d;
}

}  // namespace

void encode_iq4_nl(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  for (int64_t at = 0; at < n; at += kBlock, x += kBlock, out += kBytes) {
    float squares = 0, w[kBlock];
    for (int j = 0; j < kBlock; ++j) squares += x[j] * x[j];
    const float mean = squares * (2.0f / kBlock);
    for (int j = 0; j < kBlock; ++j)
      w[j] = importance == nullptr ? x[j] * x[j] : importance[at + j] * std::sqrt(mean + x[j] * x[j]);
    const float d = find_scale(x, w);
    const float inverse = d != 0 ? 1 / d : 0;
    store_half(out, d);
    for (int j = 0; j < kBlock / 2; ++j) {
      const int low = nearest_level(inverse * x[j]), high = nearest_level(inverse * x[j + kBlock / 2]);
      out[2 + j] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

void decode_iq4_nl(const uint8_t* in, int64_t n, float* out) noexcept {
  for (int64_t at = 0; at < n; at += kBlock, in += kBytes, out += kBlock) {
    const float d = load_half(in);
    for (int j = 0; j < kBlock; ++j) {
      const int byte = in[2 + j % (kBlock / 2)];
      out[j] = d * kLevels[j < kBlock / 2 ? byte & 15 : byte >> 4];
    }
  }
}

}  // namespace gramian
