// The bodies of the W4A8 kernels, compiled once per CPU level by w4a8.cpp: always inlined into functions that
// carry the level's target attribute, and written for the compiler to vectorize.
#pragma once

#include <cstdint>

#include "kernels/float16.h"
#include "kernels/w4a8/w4a8.h"

namespace gramian::w4a8 {
namespace {

template <class A>
[[gnu::always_inline]] inline void quantize_typed(const typename A::Stored* __restrict x, int64_t rows,
                                                  int64_t k, int8_t* __restrict q, float* __restrict scale) {
  for (int64_t row = 0; row < rows; ++row, x += k, q += k) {
    // Magnitudes order like their bits, with infinity and then NaN on top: the maximum shows both.
    typename A::Stored magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      const typename A::Stored bits = x[i] & A::kMagnitude;
      magnitude = bits > magnitude ? bits : magnitude;
    }
    const float sa = A::widen(A::narrow(A::widen(magnitude) / 127.0f));
    scale[row] = sa;
    if (!(sa > 0.0f) || sa > 3.402823466e38f) {
      for (int64_t i = 0; i < k; ++i) q[i] = 0;
      continue;
    }
    // 1.5 · 2^23: adding it leaves no fraction bits, so the addition is the rounding (|x / sa| < 2^22 always,
    // as sa is at least half of max|x| / 127).
    constexpr float kRound = 12582912.0f;
    for (int64_t i = 0; i < k; ++i) {
      float value = (A::widen(x[i]) / sa + kRound) - kRound;
      value = value < -128.0f ? -128.0f : value;
      value = value > 127.0f ? 127.0f : value;
      q[i] = static_cast<int8_t>(static_cast<int32_t>(value));
    }
  }
}

[[gnu::always_inline]] inline void quantize_body(Activation type, const void* x, int64_t rows, int64_t k,
                                                 int8_t* q, float* scale) {
  switch (type) {
    case Activation::f32:
      return quantize_typed<F32>(static_cast<const F32::Stored*>(x), rows, k, q, scale);
    case Activation::f16:
      return quantize_typed<F16>(static_cast<const F16::Stored*>(x), rows, k, q, scale);
    case Activation::bf16:
      return quantize_typed<BF16>(static_cast<const BF16::Stored*>(x), rows, k, q, scale);
  }
}

template <class A, bool kBias>
[[gnu::always_inline]] inline void rescale_rows(const int32_t* __restrict acc, int64_t rows, int64_t channels,
                                                const float* __restrict row_scale,
                                                const float* __restrict channel_scale,
                                                const float* __restrict bias,
                                                typename A::Stored* __restrict y, int64_t y_stride) {
  for (int64_t row = 0; row < rows; ++row, acc += channels, y += y_stride) {
    const float sa = row_scale[row];
    for (int64_t n = 0; n < channels; ++n) {
      typename A::Stored out = A::narrow((static_cast<float>(acc[n]) * sa) * channel_scale[n]);
      if constexpr (kBias) out = A::narrow(A::widen(out) + bias[n]);
      y[n] = out;
    }
  }
}

template <class A>
[[gnu::always_inline]] inline void rescale_typed(const int32_t* acc, int64_t rows, int64_t channels,
                                                 const float* row_scale, const float* channel_scale,
                                                 const float* bias, void* out, int64_t y_stride) {
  auto* y = static_cast<typename A::Stored*>(out);
  if (bias != nullptr) {
    rescale_rows<A, true>(acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
  } else {
    rescale_rows<A, false>(acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
  }
}

[[gnu::always_inline]] inline void rescale_body(Activation type, const int32_t* acc, int64_t rows,
                                                int64_t channels, const float* row_scale,
                                                const float* channel_scale, const float* bias, void* y,
                                                int64_t y_stride) {
  switch (type) {
    case Activation::f32:
      return rescale_typed<F32>(acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
    case Activation::f16:
      return rescale_typed<F16>(acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
    case Activation::bf16:
      return rescale_typed<BF16>(acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
  }
}

}  // namespace
}  // namespace gramian::w4a8
