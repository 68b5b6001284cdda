// The arithmetic of a W4A8 linear layer (the portable path of the QQQ runtime): activations quantized to int8
// per row, int8 x int8 -> int32 products, and the rescale to the activation's type. Every level gives the
// same bits.
//
//   sa[m]     = A(max_k |x[m,k]| / 127)                      f32 division, rounded to the activation type A
//   q[m,k]    = clamp(rne(x[m,k] / sa[m]), -128, 127)        f32 division; sa = 0 gives q = 0
//   acc[m,n]  = sum_k q[m,k] · v[n,k]                        exact (product.h)
//   y[m,n]    = A((f32(acc) · sa[m]) · s_channel[n]), then A(y + bias[n]) where there is a bias
//
// A row that holds an infinity or a NaN gets sa = infinity or NaN and q = 0, so that its outputs are NaN.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian::w4a8 {

enum class Activation { f32, f16, bf16 };

// 128 · 128 · K stays below 2^31; longer rows must be split by the caller.
inline constexpr int64_t kMaxInFeatures = 131071;

// x [rows, k] of `type`, rows contiguous -> q [rows, k], scale [rows]. Any thread; disjoint rows may run in
// parallel.
void quantize_rows(CpuLevel level, Activation type, const void* x, int64_t rows, int64_t k, int8_t* q,
                   float* scale) noexcept;

// acc [rows, channels], row_scale [rows], channel_scale [channels], bias [channels] (null for none; values
// already rounded to `type`) -> y [rows, channels] of `type` with `y_stride` elements from row to row.
void rescale(CpuLevel level, Activation type, const int32_t* acc, int64_t rows, int64_t channels,
             const float* row_scale, const float* channel_scale, const float* bias, void* y,
             int64_t y_stride) noexcept;

}  // namespace gramian::w4a8
