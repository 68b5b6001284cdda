#include "kernels/peak.h"

#include <algorithm>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gramian {
namespace {

#if defined(__x86_64__)
constexpr int kSteps = 100'000, kTries = 20;
typedef float Floats256 __attribute__((vector_size(32)));
typedef float Floats512 __attribute__((vector_size(64)));

// Runs `step` on `count` independent sums, enough to fill the pipes, and returns the floating-point operations. The
// empty assembly keeps the compiler from seeing that the sums are equal.
#define GRAMIAN_PEAK(function, target_name, Floats, count, operations, step)                         \
  [[gnu::target(target_name)]] double function() {                                                   \
    Floats sum[count], a = Floats{} + 1e-3f, b = a;                                                  \
    __asm__ volatile("" : "+v"(a), "+v"(b));                                                         \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) {                                     \
      sum[i] = Floats{};                                                                             \
      __asm__ volatile("" : "+v"(sum[i]));                                                           \
    }                                                                                                \
    for (int n = 0; n < kSteps; ++n) {                                                               \
      _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) sum[i] = step;                      \
    }                                                                                                \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) __asm__ volatile("" : : "v"(sum[i])); \
    return 1.0 * (operations) * (count) * kSteps;                                                    \
  }
GRAMIAN_PEAK(peak_avx2, "avx2,fma", Floats256, 12, 16, _mm256_fmadd_ps(a, b, sum[i]))
GRAMIAN_PEAK(peak_avx512, "avx512f", Floats512, 24, 32, _mm512_fmadd_ps(a, b, sum[i]))
GRAMIAN_PEAK(peak_bf16, "avx512f,avx512bf16", Floats512, 24, 64,
             _mm512_dpbf16_ps(sum[i], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)))

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
#endif

}  // namespace

double multiply_add_peak(CpuLevel level, DType type) {
  double best = 0;
#if defined(__x86_64__)
  if (level < CpuLevel::avx2) return 0;
  const auto loop = level >= CpuLevel::avx512_bf16 && type == DType::bf16 ? peak_bf16
                    : level >= CpuLevel::avx512                           ? peak_avx512
                                                                          : peak_avx2;
  for (int i = 0; i < kTries; ++i) {
    const double start = cpu_seconds();
    const double operations = loop();
    best = std::max(best, operations / (cpu_seconds() - start));
  }
#else
  static_cast<void>(level);
  static_cast<void>(type);
#endif
  return best;
}

}  // namespace gramian
