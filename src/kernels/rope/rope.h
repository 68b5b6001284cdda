// Rotary positions of heads in one pass: in f32, rounded once to the type of x, the same bits at every level.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

// x [rows, heads, tokens, size] with strides in elements, the last one 1; cos and sin [tokens, half], half <= size / 2. Entries
// a and b of a pair become a·cos - b·sin and b·cos + a·sin; those behind 2 · half stay.
struct RopeRows {
  DType type = DType::f32;  // f32, f16 or bf16
  const void* x = nullptr;
  int64_t rows = 0, heads = 0, tokens = 0, size = 0;
  int64_t row_stride = 0, head_stride = 0, token_stride = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;
  bool pairs = false;  // entries (2j, 2j + 1) are a pair, otherwise (j, j + half)
};

// -> y [rows, heads, tokens, size], contiguous. Any thread.
void rope_rows(CpuLevel level, const RopeRows& rope, void* y) noexcept;

}  // namespace gramian
