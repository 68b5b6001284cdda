#include "kernels/w4a8/w4a8.h"

#include "kernels/w4a8/w4a8-inl.h"

namespace gramian::w4a8 {
namespace {

void matmul_reference(const int8_t* q, int64_t rows, const int8_t* v, int64_t channels, int64_t k,
                      int32_t* acc) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < channels; ++n) {
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<int32_t>(q[m * k + i]) * static_cast<int32_t>(v[n * k + i]);
      acc[m * channels + n] = sum;
    }
  }
}

// The bodies as functions of one level; `target` is the function attribute that selects its instructions.
#define GRAMIAN_W4A8_FLOATS(suffix, target)                                                           \
  target void quantize_##suffix(Activation type, const void* x, int64_t rows, int64_t k, int8_t* q,   \
                                float* scale) {                                                       \
    quantize_body(type, x, rows, k, q, scale);                                                        \
  }                                                                                                   \
  target void rescale_##suffix(Activation type, const int32_t* acc, int64_t rows, int64_t channels,   \
                               const float* row_scale, const float* channel_scale, const float* bias, \
                               void* y, int64_t y_stride) {                                           \
    rescale_body(type, acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);             \
  }
#define GRAMIAN_W4A8_MATMUL(suffix, target, channels_held)                                                 \
  target void matmul_##suffix(const int8_t* q, int64_t rows, const int8_t* v, int64_t channels, int64_t k, \
                              int32_t* acc) {                                                              \
    matmul_body<channels_held>(q, rows, v, channels, k, acc);                                              \
  }
#define GRAMIAN_BASELINE
#define GRAMIAN_AVX2 [[gnu::target("avx2")]]
#define GRAMIAN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#define GRAMIAN_VNNI [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")]]

GRAMIAN_W4A8_FLOATS(reference, GRAMIAN_BASELINE)
#if defined(__x86_64__)
GRAMIAN_W4A8_FLOATS(avx2, GRAMIAN_AVX2)
GRAMIAN_W4A8_FLOATS(avx512, GRAMIAN_AVX512)
GRAMIAN_W4A8_MATMUL(avx2, GRAMIAN_AVX2, 2)
GRAMIAN_W4A8_MATMUL(avx512, GRAMIAN_AVX512, 4)
GRAMIAN_W4A8_MATMUL(avx512_vnni, GRAMIAN_VNNI, 4)
#endif

struct Functions {
  decltype(&matmul_reference) matmul;
  decltype(&quantize_reference) quantize;
  decltype(&rescale_reference) rescale;
};

// The best functions a level may use.
Functions functions(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512_vnni) return {matmul_avx512_vnni, quantize_avx512, rescale_avx512};
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
             const float* row_scale, const float* channel_scale, const float* bias, void* y,
             int64_t y_stride) noexcept {
  functions(level).rescale(type, acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
}

}  // namespace gramian::w4a8
