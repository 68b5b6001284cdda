#include "kernels/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
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
#define GRAMIAN_PEAK(function, target_name, Vector, count, operations, step)                         \
  [[gnu::target(target_name)]] double function() {                                                   \
    Vector sum[count], a = Vector{} + 1, b = a;                                                      \
    __asm__ volatile("" : "+v"(a), "+v"(b));                                                         \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) {                                     \
      sum[i] = Vector{};                                                                             \
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
GRAMIAN_PEAK(peak_int16_avx2, "avx2", __m256i, 12, 32, _mm256_add_epi32(sum[i], _mm256_madd_epi16(a, b)))
GRAMIAN_PEAK(peak_int16_avx512, "avx512f,avx512bw", __m512i, 24, 64,
             _mm512_add_epi32(sum[i], _mm512_madd_epi16(a, b)))
GRAMIAN_PEAK(peak_int8, "avx512f,avx512vnni", __m512i, 24, 128, _mm512_dpbusd_epi32(sum[i], a, b))

// Reads whole lines; the assembly keeps the loads.
#define GRAMIAN_READ(function, target_name, load, Vector)                                               \
  [[gnu::target(target_name)]] void function(const std::byte* from, int64_t bytes) {                    \
    for (int64_t i = 0; i + 256 <= bytes; i += 256) {                                                   \
      _Pragma("GCC unroll 8") for (int64_t j = 0; j < 256; j += static_cast<int64_t>(sizeof(Vector))) { \
        if (j % 64 == 0) __builtin_prefetch(from + i + j + 4096);                                       \
        const Vector line = load(reinterpret_cast<const Vector*>(from + i + j));                        \
        __asm__ volatile("" : : "v"(line));                                                             \
      }                                                                                                 \
    }                                                                                                   \
  }
GRAMIAN_READ(read_avx2, "avx2", _mm256_loadu_si256, __m256i)
GRAMIAN_READ(read_avx512, "avx512f", _mm512_loadu_si512, __m512i)

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double best_rate(double (*loop)()) {
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const double start = cpu_seconds();
    const double operations = loop();
    best = std::max(best, operations / (cpu_seconds() - start));
  }
  return best;
}
#endif

void read_plain(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word = 0;
    __builtin_memcpy(&word, from + i, 8);
    __asm__ volatile("" : : "r"(word));
  }
}

}  // namespace

double multiply_add_peak(CpuLevel level, DType type) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512_bf16 && type == DType::bf16) return best_rate(peak_bf16);
  if (level >= CpuLevel::avx512) return best_rate(peak_avx512);
  if (level >= CpuLevel::avx2) return best_rate(peak_avx2);
#endif
  static_cast<void>(level);
  static_cast<void>(type);
  return 0;
}

double int8_peak(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512_vnni) return best_rate(peak_int8);
  if (level >= CpuLevel::avx512) return best_rate(peak_int16_avx512);
  if (level >= CpuLevel::avx2) return best_rate(peak_int16_avx2);
#endif
  static_cast<void>(level);
  return 0;
}

double read_bandwidth(CpuLevel level, ThreadPool& pool, std::span<const std::byte> memory, int tries) {
  auto* read = read_plain;
#if defined(__x86_64__)
  if (level >= CpuLevel::avx2) read = level >= CpuLevel::avx512 ? read_avx512 : read_avx2;
#endif
  static_cast<void>(level);
  // More parts than threads, so that one thread that the system stops does not keep the others waiting.
  const int64_t parts = 8 * pool.threads(), part = static_cast<int64_t>(memory.size()) / parts / 256 * 256;
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(parts, [&](int64_t index) { read(memory.data() + index * part, part); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(parts * part) / seconds.count());
  }
  return best;
}

}  // namespace gramian
