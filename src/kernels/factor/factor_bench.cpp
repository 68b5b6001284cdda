// The factor over K x level. Cases called tiny run in the test suite.
//   FLOP/s           of K³/3 for R and K³/3 for its inverse
//   share_of_peak    of what a loop on registers alone reaches with the same instruction, measured just before
//   times_libtorch   faster than LibTorch's fp32 cholesky, cholesky_inverse and cholesky on as many threads, taken in turns
//   error            root mean square of ΔU_ij / U_ii against float64; times_error: over LibTorch's
// Conditions: `easy` is the Gram matrix of 2 K Gaussian rows; `hard` of K / 4 rows that share most of their direction,
// with 0.005 of its mean diagonal added. One thread is timed by its own CPU time, two by the clock on the wall.
#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "kernels/factor/factor.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

double seconds(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

#if defined(__x86_64__)
typedef float Floats256 __attribute__((vector_size(32)));
typedef float Floats512 __attribute__((vector_size(64)));
constexpr int kPeakSteps = 100'000;

// `count` independent sums, enough to fill the pipes; returns the floating-point operations. The empty assembly keeps
// the compiler from seeing that the sums are equal.
#define GRAMIAN_PEAK(function, target_name, Floats, count, multiply_add)                              \
  [[gnu::target(target_name)]] double function() {                                                    \
    Floats sum[count], a = Floats{} + 1e-3f, b = a;                                                   \
    __asm__ volatile("" : "+v"(a), "+v"(b));                                                          \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) {                                      \
      sum[i] = Floats{};                                                                              \
      __asm__ volatile("" : "+v"(sum[i]));                                                            \
    }                                                                                                 \
    for (int n = 0; n < kPeakSteps; ++n) {                                                            \
      _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) sum[i] = multiply_add(a, b, sum[i]); \
    }                                                                                                 \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) __asm__ volatile("" : : "v"(sum[i]));  \
    return 2.0 * sizeof(Floats) / sizeof(float) * (count) * kPeakSteps;                               \
  }
GRAMIAN_PEAK(peak_avx2, "avx2,fma", Floats256, 12, _mm256_fmadd_ps)
GRAMIAN_PEAK(peak_avx512, "avx512f", Floats512, 24, _mm512_fmadd_ps)
#endif

// FLOP/s of one core; 0 for the reference level.
double peak(CpuLevel level) {
  double best = 0;
#if defined(__x86_64__)
  for (int i = 0; i < 20 && level >= CpuLevel::avx2; ++i) {
    const double start = seconds(1);
    const double operations = level >= CpuLevel::avx512 ? peak_avx512() : peak_avx2();
    best = std::max(best, operations / (seconds(1) - start));
  }
#else
  static_cast<void>(level);
#endif
  return best;
}

at::Tensor gaussian(int64_t rows, int64_t columns) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  at::Tensor x = tensor::empty({rows, columns}, at::kFloat);
  std::generate_n(x.mutable_data_ptr<float>(), x.numel(), [&] { return normal(random); });
  return x;
}

at::Tensor matrix(int64_t columns, bool hard) {
  const int64_t rows = hard ? columns / 4 + 1 : 2 * columns;
  at::Tensor x = gaussian(rows, columns);
  if (hard) x.mul_(0.1).add_(gaussian(rows, 1));
  at::Tensor h = x.t().matmul(x).div_(static_cast<double>(rows));
  if (hard) h.diagonal().add_(h.diagonal().mean().mul(0.005));
  return h;
}

at::Tensor libtorch(const at::Tensor& h) {
  return tensor::cholesky(tensor::cholesky_inverse(*tensor::cholesky(h)))->t().contiguous();
}

double error(const at::Tensor& upper, const at::Tensor& exact) {
  const at::Tensor relative =
      upper.to(at::kDouble).sub(exact).div_(exact.diagonal().unsqueeze(1)).square_().sum();
  return std::sqrt(relative.item<double>()) / static_cast<double>(upper.size(0));
}

void invert(benchmark::State& state, int64_t columns, bool hard, CpuLevel level, int threads) {
  const tensor::InferenceScope inference;
  tensor::set_threads(threads);
  ThreadPool pool(threads);
  const at::Tensor h = matrix(columns, hard);
  at::Tensor work = h.clone(), theirs;
  bool ok = true;
  double ours = 1e30, other = 1e30;
  const auto run = [&] {
    work.copy_(h);
    const double start = seconds(threads);
    ok &= factor::invert_factor(level, work.mutable_data_ptr<float>(), columns, columns, &pool);
    ours = std::min(ours, seconds(threads) - start);
  };
  run();
  for (auto _ : state) run();
  const double limit = peak(level);
  for (int i = 0; i < (columns > 2048 ? 2 : 5); ++i) {
    run();
    const double start = seconds(threads);
    theirs = libtorch(h);
    other = std::min(other, seconds(threads) - start);
  }
  if (!ok) state.SkipWithError("not positive definite");
  const double n = static_cast<double>(columns), operations = 2 * n * n * n / 3;
  state.counters["FLOP/s"] = operations / ours;
  if (limit > 0) state.counters["share_of_peak"] = operations / ours / limit / threads;
  state.counters["times_libtorch"] = other / ours;
  if (columns <= 2048) {
    const at::Tensor exact = libtorch(h.to(at::kDouble));
    state.counters["error"] = error(work, exact);
    state.counters["times_error"] = error(work, exact) / error(theirs, exact);
  }
}

void register_all() {
  for (int i = 0; i <= static_cast<int>(std::min(detected_cpu_level(), CpuLevel::avx512)); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    for (const int64_t columns : {65, 896, 2048, 4096, 4864}) {
      for (const bool hard : {false, true}) {
        for (const int threads : {1, 2}) {
          if (hard && (threads > 1 || columns > 2048)) continue;
          const std::string label = std::string("invert/") + (columns == 65 ? "tiny_" : "") +
                                    std::to_string(columns) + (hard ? "/hard/" : "/easy/") +
                                    std::string(name(level)) + "/threads_" + std::to_string(threads);
          benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
            invert(state, columns, hard, level, threads);
          })->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  gramian::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
