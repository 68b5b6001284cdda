// Norms of rows in one pass, every level with the same bits. With x widened to f32, n = x / sqrt(mean(x²) + eps):
//
//   rms         A(A(n) · A(weight))
//   rms_offset  A(n · (1 + weight))
//   rms_once    A(n · weight)
//   layer       the same plus bias, of x less its mean: A(n · weight + bias)
//
// A(.) rounds to the type of x. A sum is of 16 interleaved parts, which are then added in halves.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

enum class NormForm { rms, rms_offset, rms_once, layer };

struct NormRows {
  NormForm form = NormForm::rms;
  DType type = DType::f32;  // f32, f16 or bf16
  const void* x = nullptr;  // [rows, size], contiguous
  int64_t rows = 0;
  int64_t size = 0;
  const float* weight = nullptr;  // [size]
  const float* bias = nullptr;    // [size] or null
  float eps = 0;
};

// -> y [rows, size] of the same type; may be x. Throws std::bad_alloc. Any thread.
void norm_rows(CpuLevel level, const NormRows& norm, void* y);

}  // namespace gramian
