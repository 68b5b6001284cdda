#include "kernels/solve/block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gramian {
namespace {

namespace baseline {
#define GRAMIAN_TARGET
#define GRAMIAN_LANES 4
#include "kernels/solve/block-inl.h"
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2")]]
#define GRAMIAN_LANES 8
#include "kernels/solve/block-inl.h"
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace avx2
namespace avx512 {
#define GRAMIAN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define GRAMIAN_LANES 16
#include "kernels/solve/block-inl.h"
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace avx512
#endif

int64_t group_of(const SolveBlock& block, int64_t column) {
  return (block.first_column + column) / block.group_size - block.first_column / block.group_size;
}

}  // namespace

double solve_block(const SolveBlock& block, CpuLevel level) noexcept {
  // Rows beyond block.rows hold zeros on a grid of 1: no error, no loss.
  alignas(64) float w[kBlockColumns * kBlockRows];
  alignas(64) float e[kBlockColumns * kBlockRows];
  alignas(64) float scales[kBlockColumns * kBlockRows];
  alignas(64) float loss[kBlockRows] = {};
  const int64_t groups = group_of(block, block.columns - 1) + 1;
  for (int64_t j = 0; j < block.columns; ++j) {
    std::copy_n(block.weights + j * block.stride, block.rows, w + j * kBlockRows);
    std::fill(w + j * kBlockRows + block.rows, w + (j + 1) * kBlockRows, 0.0f);
  }
  for (int64_t g = 0; g < groups; ++g) {
    std::copy_n(block.scale + g * block.stride, block.rows, scales + g * kBlockRows);
    std::fill(scales + g * kBlockRows + block.rows, scales + (g + 1) * kBlockRows, 1.0f);
  }
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) {
    avx512::recursion(block, scales, w, e, loss);
  } else if (level >= CpuLevel::avx2) {
    avx2::recursion(block, scales, w, e, loss);
  } else {
    baseline::recursion(block, scales, w, e, loss);
  }
#else
  static_cast<void>(level);
  baseline::recursion(block, scales, w, e, loss);
#endif
  for (int64_t j = 0; j < block.columns; ++j) {
    std::copy_n(e + j * kBlockRows, block.rows, block.errors + j * block.stride);
    for (int64_t r = 0; r < block.rows; ++r) {
      block.codes[j * block.stride + r] = static_cast<int8_t>(w[j * kBlockRows + r]);
    }
  }
  double total = 0;
  for (int64_t r = 0; r < block.rows; ++r) total += loss[r];
  return total;
}

double solve_block_reference(const SolveBlock& block) noexcept {
  double total = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    float w[kBlockColumns];
    float loss = 0;
    for (int64_t j = 0; j < block.columns; ++j) w[j] = block.weights[j * block.stride + r];
    for (int64_t i = 0; i < block.columns; ++i) {
      const float diagonal = block.upper_t[i * kBlockColumns + i];
      const float scale = block.scale[group_of(block, i) * block.stride + r];
      const float code = std::clamp(std::nearbyint(w[i] / scale), static_cast<float>(block.code_min),
                                    static_cast<float>(block.code_max));
      const float difference = w[i] - code * scale;
      if (block.dead == nullptr || !block.dead[i]) loss += difference * difference / (diagonal * diagonal) / 2.0f;
      const float error = difference / diagonal;
      for (int64_t j = i + 1; j < block.columns; ++j) {
        const float update = error * block.upper_t[j * kBlockColumns + i];
        w[j] -= update;
      }
      block.codes[i * block.stride + r] = static_cast<int8_t>(code);
      block.errors[i * block.stride + r] = error;
    }
    total += loss;
  }
  return total;
}

}  // namespace gramian
