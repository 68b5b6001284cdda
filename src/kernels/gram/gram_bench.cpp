// The kernels of this folder over shape x type x level. Cases called tiny run in the test suite.
//   FLOP/s           of the lower triangle alone: T K (K + 1)
//   share_of_peak    of what a loop on registers alone reaches with the same instruction, measured just before
//   times_libtorch   faster than LibTorch's fp32 addmm_ of the whole matrix on as many threads, taken in turns; rows of
//                    16-bit types are widened for it beforehand
//   error            root mean square of ΔH_ij / √(H_ii H_jj) against float64; times_error: over LibTorch's
// One thread is timed by its own CPU time, two by the clock on the wall.
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
#include "kernels/gram/gram.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using gram::Rows;
using gram::Workspace;

double seconds(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The shortest of `repeats` times of each, taken in turns.
std::pair<double, double> seconds_of(const auto& ours, const auto& theirs, int repeats, int threads) {
  std::pair<double, double> best{1e30, 1e30};
  for (int i = 0; i < repeats; ++i) {
    const double start = seconds(threads);
    ours();
    const double middle = seconds(threads);
    theirs();
    best = {std::min(best.first, middle - start), std::min(best.second, seconds(threads) - middle)};
  }
  return best;
}

constexpr int kPeakSteps = 100'000;

#if defined(__x86_64__)
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
    for (int n = 0; n < kPeakSteps; ++n) {                                                           \
      _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) sum[i] = step;                      \
    }                                                                                                \
    _Pragma("GCC unroll 24") for (int i = 0; i < (count); ++i) __asm__ volatile("" : : "v"(sum[i])); \
    return 1.0 * (operations) * (count) * kPeakSteps;                                                \
  }
GRAMIAN_PEAK(peak_avx2, "avx2,fma", Floats256, 12, 16, _mm256_fmadd_ps(a, b, sum[i]))
GRAMIAN_PEAK(peak_avx512, "avx512f", Floats512, 24, 32, _mm512_fmadd_ps(a, b, sum[i]))
GRAMIAN_PEAK(peak_bf16, "avx512f,avx512bf16", Floats512, 24, 64,
             _mm512_dpbf16_ps(sum[i], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)))
#endif

// FLOP/s of one core with the instruction that `level` multiplies `type` with; 0 for the scalar reference.
double peak(CpuLevel level, at::ScalarType type) {
  double best = 0;
#if defined(__x86_64__)
  const auto loop = level >= CpuLevel::avx512_bf16 && type == at::kBFloat16 ? peak_bf16
                    : level >= CpuLevel::avx512                             ? peak_avx512
                                                                            : peak_avx2;
  for (int i = 0; i < 20 && level >= CpuLevel::avx2; ++i) {
    const double start = seconds(1);
    const double operations = loop();
    best = std::max(best, operations / (seconds(1) - start));
  }
#else
  static_cast<void>(level);
  static_cast<void>(type);
#endif
  return best;
}

at::Tensor gaussian(int64_t tokens, int64_t columns, at::ScalarType type) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  at::Tensor x = tensor::empty({tokens, columns}, at::kFloat);
  std::generate_n(x.mutable_data_ptr<float>(), x.numel(), [&] { return normal(random); });
  return x.to(type);
}

Rows rows_of(const at::Tensor& x) {
  return {.type = tensor::dtype_of(x),
          .data = x.const_data_ptr(),
          .stride = x.stride(0),
          .count = x.size(0),
          .columns = x.size(1)};
}

// Root mean square over the lower triangle.
double error(const at::Tensor& h, const at::Tensor& exact) {
  const at::Tensor root = exact.diagonal().sqrt();
  const at::Tensor relative =
      h.to(at::kDouble).sub(exact).div_(root.unsqueeze(0)).div_(root.unsqueeze(1)).tril_();
  const auto columns = static_cast<double>(h.size(0));
  return std::sqrt(relative.square_().sum().item<double>() / (columns * (columns + 1) / 2));
}

struct Shape {
  int64_t tokens, columns;
};

void lower(benchmark::State& state, const Shape& shape, at::ScalarType type, CpuLevel level, int threads) {
  const tensor::InferenceScope inference;
  tensor::set_threads(threads);
  const auto [tokens, columns] = shape;
  const at::Tensor x = gaussian(tokens, columns, type), wide = x.to(at::kFloat);
  const at::Tensor h = tensor::zeros({columns, columns}, at::kFloat), theirs = h.clone();
  const Rows rows = rows_of(x);
  ThreadPool pool(threads);
  const int64_t parts = threads == 1 ? 1 : 2 * threads;
  std::vector<Workspace> workspaces(static_cast<size_t>(parts));
  const auto work = [&] {
    pool.run(parts, [&](int64_t part) {
      add_lower(level, rows, gram::part_begin(columns, parts, part),
                gram::part_begin(columns, parts, part + 1), h.mutable_data_ptr<float>(), columns,
                workspaces[static_cast<size_t>(part)]);
    });
  };
  const auto libtorch = [&] { theirs.addmm_(wide.t(), wide); };
  work();
  libtorch();
  const at::Tensor exact = wide.to(at::kDouble).t().matmul(wide.to(at::kDouble));
  state.counters["error"] = error(h, exact);
  state.counters["times_error"] = error(h, exact) / error(theirs, exact);

  const double limit = peak(level, type);
  for (auto _ : state) work();
  const auto [ours, other] = seconds_of(work, libtorch, level == CpuLevel::reference ? 1 : 7, threads);
  const auto count = static_cast<double>(columns);
  const double operations = static_cast<double>(tokens) * count * (count + 1);
  state.counters["FLOP/s"] = operations / ours;
  if (limit > 0) state.counters["share_of_peak"] = operations / ours / limit / threads;
  state.counters["times_libtorch"] = other / ours;
}

void blocks(benchmark::State& state, const Shape& shape, at::ScalarType type, CpuLevel level) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  const int64_t count = shape.columns / gram::kBlockWidth;
  const at::Tensor x = gaussian(shape.tokens, shape.columns, type), wide = x.to(at::kFloat);
  const at::Tensor sums = tensor::zeros({count, gram::kBlockWidth, gram::kBlockWidth}, at::kFloat);
  const at::Tensor theirs = sums.clone();
  std::vector<Workspace> workspace(1);
  const auto work = [&] {
    add_blocks(level, rows_of(x), 0, count, sums.mutable_data_ptr<float>(), workspace[0]);
  };
  const auto libtorch = [&] {
    const at::Tensor columns = wide.reshape({shape.tokens, count, gram::kBlockWidth}).permute({1, 2, 0});
    theirs.baddbmm_(columns, columns.transpose(1, 2));
  };
  const double limit = peak(level, type);
  for (auto _ : state) work();
  const auto [ours, other] = seconds_of(work, libtorch, 5, 1);
  const double operations = 2.0 * static_cast<double>(shape.tokens * shape.columns * gram::kBlockWidth);
  state.counters["FLOP/s"] = operations / ours;
  if (limit > 0) state.counters["share_of_peak"] = operations / ours / limit;
  state.counters["times_libtorch"] = other / ours;
}

void squares(benchmark::State& state, const Shape& shape, at::ScalarType type, CpuLevel level) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  const at::Tensor x = gaussian(shape.tokens, shape.columns, type), wide = x.to(at::kFloat);
  std::vector<double> sums(static_cast<size_t>(shape.columns));
  const auto work = [&] { add_column_squares(level, rows_of(x), 0, shape.columns, sums.data()); };
  const auto libtorch = [&] { benchmark::DoNotOptimize(wide.square().sum(0).const_data_ptr()); };
  for (auto _ : state) work();
  const auto [ours, other] = seconds_of(work, libtorch, 5, 1);
  state.counters["bytes/s"] = static_cast<double>(x.numel() * x.element_size()) / ours;
  state.counters["times_libtorch"] = other / ours;
}

void add(const std::string& label, auto function, auto... fixed) {
  benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
    function(state, fixed...);
  })->Unit(benchmark::kMillisecond);
}

void register_all() {
  constexpr Shape kTiny = {33, 65}, kShapes[] = {kTiny, {512, 896}, {2048, 896}, {512, 2048}, {512, 4096}};
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    if (level == CpuLevel::avx512_vnni) continue;  // avx512's functions
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Shape& shape : kShapes) {
        if (level == CpuLevel::reference && shape.columns > 896) continue;
        const bool tiny = shape.columns == kTiny.columns;
        const std::string tail = std::string(tiny ? "/tiny_" : "/") + std::to_string(shape.tokens) + "x" +
                                 std::to_string(shape.columns) + "/" + c10::toString(type) + "/" +
                                 std::string(name(level));
        add("lower" + tail, lower, shape, type, level, 1);
        if (level == detected_cpu_level()) add("lower" + tail + "/threads_2", lower, shape, type, level, 2);
        const Shape whole = tiny ? Shape{33, 64} : shape;
        add("blocks" + tail, blocks, whole, type, level);
        add("squares" + tail, squares, shape, type, level);
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
