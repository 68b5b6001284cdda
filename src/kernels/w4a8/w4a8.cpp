#include "kernels/w4a8/w4a8.h"

#include "kernels/w4a8/w4a8-inl.h"
#include "kernels/wide_vectors.h"

namespace gramian::w4a8 {
namespace {

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
#define GRAMIAN_BASELINE
#define GRAMIAN_AVX2 [[gnu::target("avx2")]]
#define GRAMIAN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS)]]

GRAMIAN_W4A8_FLOATS(reference, GRAMIAN_BASELINE)
#if defined(__x86_64__)
GRAMIAN_W4A8_FLOATS(avx2, GRAMIAN_AVX2)
GRAMIAN_W4A8_FLOATS(avx512, GRAMIAN_AVX512)
#endif

struct Functions {
  decltype(&quantize_reference) quantize;
  decltype(&rescale_reference) rescale;
};

// The best functions a level may use.
Functions functions(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return {quantize_avx512, rescale_avx512};
  if (level >= CpuLevel::avx2) return {quantize_avx2, rescale_avx2};
#else
  (void)level;
#endif
  return {quantize_reference, rescale_reference};
}

}  // namespace

void quantize_rows(CpuLevel level, Activation type, const void* x, int64_t rows, int64_t k, int8_t* q,
                   float* scale) noexcept {
  functions(level).quantize(type, x, rows, k, q, scale);
}

void rescale(CpuLevel level, Activation type, const int32_t* acc, int64_t rows, int64_t channels,
             const float* row_scale, const float* channel_scale, const float* bias, void* y,
             int64_t y_stride) noexcept {
  functions(level).rescale(type, acc, rows, channels, row_scale, channel_scale, bias, y, y_stride);
}

}  // namespace gramian::w4a8
