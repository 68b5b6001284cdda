// The kernels of this folder over shape x type x level. Cases called tiny run in the test suite.
//   FLOP/s           of the lower triangle alone: T K (K + 1)
//   share_of_peak    of what a loop on registers alone reaches with the same instruction, measured just before
//   times_libtorch   faster than LibTorch on as many threads, taken in turns: fp32 addmm_ of the whole matrix, baddbmm_,
//                    square and sum; rows of 16-bit types are widened for it, for `lower` within its time
//   error            root mean square of ΔH_ij / √(H_ii H_jj) against float64; times_error: over LibTorch's
// One thread is timed by its own CPU time, two by the clock on the wall. `gramian bench gram` prints the same of the level
// in use.
#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "eval/kernel_speed.h"
#include "kernels/gram/gram.h"
#include "kernels/peak.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using gram::Rows;
using gram::Workspace;

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

struct Shape {
  int64_t tokens, columns;
};

void lower(benchmark::State& state, const Shape& shape, at::ScalarType type, CpuLevel level, int threads) {
  KernelFigure figure;
  for (auto _ : state) {
    figure = measure_gram({.columns = shape.columns,
                           .tokens = shape.tokens,
                           .dtype = type == at::kBFloat16 ? DType::bf16 : DType::f32,
                           .level = level,
                           .threads = threads,
                           .repeats = level == CpuLevel::reference ? 1 : 7});
    state.SetIterationTime(figure.seconds);
  }
  for (const auto& [name, value] : figure.counters()) state.counters[name] = value;
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
  const double limit = multiply_add_peak(level, tensor::dtype_of(x));
  for (auto _ : state) work();
  const std::vector<double> times = shortest_in_turns({work, libtorch}, 5, 1);
  const double operations = 2.0 * static_cast<double>(shape.tokens * shape.columns * gram::kBlockWidth);
  state.counters["FLOP/s"] = operations / times[0];
  if (limit > 0) state.counters["share_of_peak"] = operations / times[0] / limit;
  state.counters["times_libtorch"] = times[1] / times[0];
}

void squares(benchmark::State& state, const Shape& shape, at::ScalarType type, CpuLevel level) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  const at::Tensor x = gaussian(shape.tokens, shape.columns, type), wide = x.to(at::kFloat);
  std::vector<double> sums(static_cast<size_t>(shape.columns));
  const auto work = [&] { add_column_squares(level, rows_of(x), 0, shape.columns, sums.data()); };
  const auto libtorch = [&] { benchmark::DoNotOptimize(wide.square().sum(0).const_data_ptr()); };
  for (auto _ : state) work();
  const std::vector<double> times = shortest_in_turns({work, libtorch}, 5, 1);
  state.counters["bytes/s"] = static_cast<double>(x.numel() * x.element_size()) / times[0];
  state.counters["times_libtorch"] = times[1] / times[0];
}

void add(const std::string& label, auto function, auto... fixed) {
  benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
    function(state, fixed...);
  })->Unit(benchmark::kMillisecond);
}

// Cases that take their times themselves.
void add_measured(const std::string& label, auto function, auto... fixed) {
  benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) { function(state, fixed...); })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(1);
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
        add_measured("lower" + tail, lower, shape, type, level, 1);
        if (level == detected_cpu_level())
          add_measured("lower" + tail + "/threads_2", lower, shape, type, level, 2);
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
