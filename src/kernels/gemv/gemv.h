// Products of single vectors with a matrix that stays as it is stored: read once, widened in registers. Every level gives the same
// bits: a sum is of 64 interleaved parts without fused multiply-adds, which are then added in halves.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

struct StoredMatrix {
  DType type = DType::f32;        // f32, f16, bf16 or i8
  const void* values = nullptr;   // [rows, columns], contiguous
  const float* scales = nullptr;  // of rows, [rows], or null
  int64_t columns = 0;
};

// y[r] = scale[r] · Σ_c matrix[r, c] x[c] for r in first .. first + count, into y[first ..]. Any thread.
void multiply_vector(CpuLevel level, const StoredMatrix& matrix, const float* x, int64_t first, int64_t count,
                     float* y) noexcept;

}  // namespace gramian
