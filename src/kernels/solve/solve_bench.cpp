// The solver's hot spots. `times_libtorch`: how much faster than the same work as LibTorch operations,
// measured in the same process on as many threads. Cases called tiny run in the test suite.
#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "kernels/solve/block.h"
#include "kernels/solve/grid.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

at::Tensor gaussian(int64_t rows, int64_t columns, float sigma) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, sigma);
  at::Tensor result = tensor::empty({rows, columns}, at::kFloat);
  std::generate_n(result.mutable_data_ptr<float>(), rows * columns, [&] { return normal(random); });
  return result;
}

double seconds_of(const auto& work, int repeats) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// The scale search as tensor operations: one pass over the matrix per candidate.
at::Tensor libtorch_scales(const at::Tensor& x, double p) {
  const at::Tensor hi = x.abs().amax(1, true);
  at::Tensor best = tensor::full({x.size(0), 1}, 1e30, at::kFloat);
  at::Tensor scale = hi.mul(2).div(15);
  for (int i = 0; i < kGridCandidates; ++i) {
    const at::Tensor candidate = hi.mul(1.0 - i / 100.0).mul(2).div(15);
    const at::Tensor error =
        x.div(candidate).round_().clamp_(-8, 7).mul_(candidate).sub_(x).abs_().pow_(p).sum(1, true);
    const at::Tensor better = error.lt(best);
    scale = candidate.where(better, scale);
    best = error.where(better, best);
  }
  return scale;
}

// The block recursion as tensor operations: all rows, one column at a time.
void libtorch_block(at::Tensor weights, const at::Tensor& upper, const at::Tensor& scale) {
  at::Tensor w = weights.slice(1, 0, kBlockColumns).clone();
  at::Tensor errors = tensor::empty(w.sizes(), at::kFloat);
  for (int64_t i = 0; i < kBlockColumns; ++i) {
    const at::Tensor column = w.slice(1, i, i + 1);
    const at::Tensor q = column.div(scale).round_().clamp_(-8, 7).mul_(scale);
    const at::Tensor error = column.sub(q).div_(upper.select(0, i).select(0, i));
    w.slice(1, i, kBlockColumns).sub_(error.mul(upper.slice(0, i, i + 1).slice(1, i, kBlockColumns)));
    errors.slice(1, i, i + 1).copy_(error);
  }
  weights.slice(1, kBlockColumns, weights.size(1))
      .addmm_(errors, upper.slice(1, kBlockColumns, weights.size(1)), 1, -1);
}

void mse_grid(benchmark::State& state, int64_t rows, CpuLevel level) {
  tensor::set_threads(1);
  const at::Tensor x = gaussian(rows, 128, 0.02f);
  const GridScaler scaler({.mse = 2.4}, level);
  std::vector<float> scale(rows);
  const auto work = [&] { scaler.scales(x.const_data_ptr<float>(), 128, rows, 128, scale.data(), 1); };
  for (auto _ : state) work();
  state.counters["weights/s"] =
      benchmark::Counter(static_cast<double>(rows * 128), benchmark::Counter::kIsIterationInvariantRate);
  const double libtorch = seconds_of([&] { benchmark::DoNotOptimize(libtorch_scales(x, 2.4)); }, 2);
  state.counters["times_libtorch"] = libtorch / seconds_of(work, 3);
}

// One block of 128 columns and its trailing update for `rows` rows, `columns` in all.
void block(benchmark::State& state, int64_t rows, int64_t columns, CpuLevel level) {
  tensor::set_threads(1);
  const at::Tensor upper = gaussian(kBlockColumns, columns, 0.02f);
  upper.diagonal().fill_(1);
  const at::Tensor source = gaussian(rows, columns, 1);
  const at::Tensor scale = tensor::full({rows, 1}, 0.3, at::kFloat);
  const at::Tensor diagonal_t = upper.slice(1, 0, kBlockColumns).t().contiguous();
  const int64_t chunks = rows / kBlockRows;
  at::Tensor weights = source.reshape({chunks, kBlockRows, columns}).transpose(1, 2).contiguous();
  std::vector<int8_t> codes(rows * kBlockColumns);
  const std::vector<int32_t> group(kBlockColumns);
  const auto work = [&] {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      benchmark::DoNotOptimize(
          solve_block({.rows = kBlockRows,
                       .columns = kBlockColumns,
                       .trailing = columns - kBlockColumns,
                       .weights = weights.mutable_data_ptr<float>() + chunk * kBlockRows * columns,
                       .diagonal_t = diagonal_t.const_data_ptr<float>(),
                       .right = upper.const_data_ptr<float>() + kBlockColumns,
                       .right_stride = columns,
                       .group = group.data(),
                       .scale = scale.const_data_ptr<float>() + chunk * kBlockRows,
                       .codes = codes.data() + chunk * kBlockRows * kBlockColumns,
                       .codes_stride = kBlockColumns},
                      level));
    }
  };
  for (auto _ : state) work();
  const double flops = 2.0 * static_cast<double>(rows) * kBlockColumns * (columns - kBlockColumns / 2.0);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  at::Tensor copy = source.clone();
  state.counters["times_libtorch"] =
      seconds_of([&] { libtorch_block(copy, upper, scale); }, 2) / seconds_of(work, 3);
}

at::Tensor hessian(int64_t columns) {
  const at::Tensor x = gaussian(2 * columns, columns, 1);
  return x.t().matmul(x).div_(static_cast<double>(columns));
}

void factor(benchmark::State& state, int64_t columns, int threads) {
  tensor::set_threads(threads);
  const at::Tensor h = hessian(columns);
  const auto work = [&] { benchmark::DoNotOptimize(factorize(h, 0.005, 0.001).upper); };
  for (auto _ : state) work();
  const double libtorch = seconds_of(
      [&] {
        at::Tensor damped = h.clone();
        damped.diagonal().add_(0.01);
        benchmark::DoNotOptimize(tensor::cholesky(tensor::cholesky_inverse(*tensor::cholesky(damped)))->t());
      },
      1);
  state.counters["times_libtorch"] = libtorch / seconds_of(work, 1);
}

void gptq(benchmark::State& state, int64_t rows, int64_t columns, int threads) {
  tensor::set_threads(threads);
  ThreadPool pool(threads);
  const at::Tensor weight = gaussian(rows, columns, 0.02f);
  const Factor factor = factorize(hessian(columns), 0.005, 0.001);
  SolveOptions options;
  for (auto _ : state) benchmark::DoNotOptimize(solve_gptq(weight, factor, 1000, options, pool).loss);
  state.counters["weights/s"] =
      benchmark::Counter(static_cast<double>(rows * columns), benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (int i = 0; i <= static_cast<int>(std::min(detected_cpu_level(), CpuLevel::avx512)); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    const std::string suffix = "/" + std::string(name(level));
    const auto add = [&](const std::string& label, auto function, auto... arguments) {
      benchmark::RegisterBenchmark((label + suffix).c_str(), [=](benchmark::State& state) {
        function(state, arguments..., level);
      })->Unit(benchmark::kMillisecond);
    };
    add("mse_grid/tiny_64x128", mse_grid, int64_t{64});
    add("mse_grid/4096x128", mse_grid, int64_t{4096});
    add("block/tiny_64x256", block, int64_t{64}, int64_t{256});
    add("block/1024x1024", block, int64_t{1024}, int64_t{1024});
    add("block/896x4864", block, int64_t{896}, int64_t{4864});
  }
  for (const int threads : {1, 2}) {
    const std::string suffix = "/threads_" + std::to_string(threads);
    const auto add = [&](const std::string& label, auto function, auto... arguments) {
      benchmark::RegisterBenchmark((label + suffix).c_str(),
                                   [=](benchmark::State& state) { function(state, arguments..., threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    };
    add("factor/tiny_128", factor, int64_t{128});
    add("factor/896", factor, int64_t{896});
    add("factor/4864", factor, int64_t{4864});
    add("gptq/tiny_64x128", gptq, int64_t{64}, int64_t{128});
    add("gptq/896x896", gptq, int64_t{896}, int64_t{896});
    add("gptq/4864x896", gptq, int64_t{4864}, int64_t{896});
    add("gptq/896x4864", gptq, int64_t{896}, int64_t{4864});
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
