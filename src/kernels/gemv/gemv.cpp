#include "kernels/gemv/gemv.h"

#include "kernels/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gramian {
namespace {

constexpr int kParts = 64;  // that a sum is made of, whatever the width of vectors

struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
inline float widen(int8_t value) { return value; }
inline float widen(float value) { return value; }
inline float widen(Bf16 value) { return bf16_to_f32(value.bits); }
inline float widen(Half value) { return f16_to_f32(value.bits); }

#define GRAMIAN_BODY "kernels/gemv/gemv-inl.h"
#include "kernels/each_level.h"

}  // namespace

void multiply_vector(CpuLevel level, const StoredMatrix& matrix, const float* x, int64_t first, int64_t count,
                     float* y) noexcept {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::run(matrix, x, first, count, y);
  if (level >= CpuLevel::avx2) return avx2::run(matrix, x, first, count, y);
#endif
  static_cast<void>(level);
  baseline::run(matrix, x, first, count, y);
}

}  // namespace gramian
