#include "kernels/solve/block.h"

#include <algorithm>
#include <cmath>

namespace gramian {
namespace {

#define GRAMIAN_BODY "kernels/solve/block-inl.h"
#include "kernels/each_level.h"

void recursion_at(CpuLevel level, const SolveBlock& block, float* e, float* codes, float* loss) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::recursion(block, e, codes, loss);
  if (level >= CpuLevel::avx2) return avx2::recursion(block, e, codes, loss);
#endif
  static_cast<void>(level);
  baseline::recursion(block, e, codes, loss);
}

}  // namespace

double solve_block(const SolveBlock& block, CpuLevel level) noexcept {
  alignas(64) float e[kBlockColumns * kBlockRows];
  alignas(64) float codes[kBlockColumns * kBlockRows];
  alignas(64) float loss[kBlockRows] = {};
  recursion_at(level, block, e, codes, loss);
  subtract_product({.rows = block.rows,
                    .steps = e,
                    .columns = block.columns,
                    .matrix = block.right,
                    .stride = block.right_stride,
                    .width = block.trailing,
                    .into = block.weights + block.columns * kBlockRows},
                   level);
  double total = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    total += loss[r];
    for (int64_t j = 0; j < block.columns; ++j) {
      block.codes[r * block.codes_stride + j] = static_cast<int8_t>(codes[j * kBlockRows + r]);
    }
  }
  return total;
}

double solve_block_reference(const SolveBlock& block) noexcept {
  double total = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    float w[kBlockColumns] = {}, e[kBlockColumns] = {};
    float loss = 0;
    for (int64_t j = 0; j < block.columns; ++j) w[j] = block.weights[j * kBlockRows + r];
    for (int64_t i = 0; i < block.columns; ++i) {
      const float diagonal = block.diagonal_t[i * kBlockColumns + i];
      const int64_t at = block.group[i] * kBlockRows + r;
      const float scale = block.scale[at], zero = block.zero == nullptr ? 0 : block.zero[at];
      const float code = std::clamp(std::nearbyint(w[i] / scale), static_cast<float>(block.code_min) - zero,
                                    static_cast<float>(block.code_max) - zero);
      const float difference = w[i] - code * scale;
      if (block.dead == nullptr || !block.dead[i])
        loss += difference * difference / (diagonal * diagonal) / 2.0f;
      e[i] = difference / diagonal;
      for (int64_t j = i + 1; j < block.columns; ++j) w[j] -= e[i] * block.diagonal_t[j * kBlockColumns + i];
      block.codes[r * block.codes_stride + i] = static_cast<int8_t>(code + zero);
    }
    for (int64_t j = 0; j < block.trailing; ++j) {
      float sum = 0;
      for (int64_t i = 0; i < block.columns; ++i) sum += e[i] * block.right[i * block.right_stride + j];
      block.weights[(block.columns + j) * kBlockRows + r] -= sum;
    }
    total += loss;
  }
  return total;
}

}  // namespace gramian
