#include "kernels/w4a8/w4a8.h"

#include "kernels/w4a8/w4a8-inl.h"

namespace gramian::w4a8 {
namespace {

void matmul_reference(const int8_t* q, int64_t rows, const int8_t* v, int64_t channels, int64_t k, int32_t* acc) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < channels; ++n) {
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += static_cast<int32_t>(q[m * k + i]) * static_cast<int32_t>(v[n * k + i]);
      acc[m * channels + n] = sum;
    }
  }
}

// One set of functions per level; `target` is the function attribute that selects its instructions.
#define GRAMIAN_W4A8_LEVEL(suffix, target, channels_held)                                                             \
  target void matmul_##suffix(const int8_t* q, int64_t rows, const int8_t* v, int64_t channels, int64_t k,            \
                              int32_t* acc) {                                                                         \
    matmul_body<channels_held>(q, rows, v, channels, k, acc);                                                         \
  }                                                                                                                   \
  GRAMIAN_W4A8_FLOATS(suffix, target)

#define GRAMIAN_W4A8_FLOATS(suffix, target)                                                                           \
  target void quantize_##suffix(Activation type, const void* x, int64_t rows, int64_t k, int8_t* q, float* scale) {   \
    switch (type) {                                                                                                   \
      case Activation::f32: return quantize_body<F32>(static_cast<const uint32_t*>(x), rows, k, q, scale);            \
      case Activation::f16: return quantize_body<F16>(static_cast<const uint16_t*>(x), rows, k, q, scale);            \
      case Activation::bf16: return quantize_body<BF16>(static_cast<const uint16_t*>(x), rows, k, q, scale);          \
    }                                                                                                                 \
  }                                                                                                                   \
  target void rescale_##suffix(Activation type, const int32_t* acc, int64_t rows, int64_t channels,                   \
                               const float* row_scale, const float* channel_scale, const float* bias, void* y,        \
                               int64_t y_stride) {                                                                    \
    switch (type) {                                                                                                   \
      case Activation::f32:                                                                                           \
        return rescale_body<F32>(acc, rows, channels, row_scale, channel_scale, bias, static_cast<uint32_t*>(y),      \
                                 y_stride);                                                                           \
      case Activation::f16:                                                                                           \
        return rescale_body<F16>(acc, rows, channels, row_scale, channel_scale, bias, static_cast<uint16_t*>(y),      \
                                 y_stride);                                                                           \
      case Activation::bf16:                                                                                          \
        return rescale_body<BF16>(acc, rows, channels, row_scale, channel_scale, bias, static_cast<uint16_t*>(y),     \
                                  y_stride);                                                                          \
    }                                                                                                                 \
  }

#define GRAMIAN_NO_TARGET
GRAMIAN_W4A8_FLOATS(reference, GRAMIAN_NO_TARGET)
#if defined(__x86_64__)
GRAMIAN_W4A8_LEVEL(avx2, [[gnu::target("avx2")]], 2)
GRAMIAN_W4A8_LEVEL(avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]], 4)
GRAMIAN_W4A8_LEVEL(avx512_vnni,
                   [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")]], 4)
#endif
#undef GRAMIAN_NO_TARGET
#undef GRAMIAN_W4A8_FLOATS
#undef GRAMIAN_W4A8_LEVEL

struct Functions {
  decltype(&matmul_reference) matmul;
  decltype(&quantize_reference) quantize;
  decltype(&rescale_reference) rescale;
};

// The best functions a level may use.
Functions functions(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512_vnni) return {matmul_avx512_vnni, quantize_avx512_vnni, rescale_avx512_vnni};
  if (level >= CpuLevel::avx512) return {matmul_avx512, quantize_avx512, rescale_avx512};
  if (level >= CpuLevel::avx2) return {matmul_avx2, quantize_avx2, rescale_avx2};
#else
  (void)level;
#endif
  return {matmul_reference, quantize_reference, rescale_reference};
}

}  // namespace

void quantize_rows(CpuLevel level, Activation type, const void* x, int64_t rows, int64_t k, int8_t* q,
                   float* scale) noexcept {
  functions(level).quantize(type, x, rows, k, q, scale);
}

void int8_matmul(CpuLevel level, const int8_t* q, int64_t rows, const int8_t* v, int64_t channels, int64_t k,
                 int32_t* acc) noexcept {
  functions(level).matmul(q, rows, v, channels, k, acc);
}

void rescale(CpuLevel level, Activation type, const int32_t* acc, int64_t rows, int64_t channels,
             const float* row_scale, const float* channel_scale, const float* bias, void* y, int64_t y_stride) noexcept {
  functions(level).rescale(type, acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
}

}  // namespace gramian::w4a8
