// The factor over K x level. Cases called tiny run in the test suite.
//   FLOP/s           of K³/3 for R and K³/3 for its inverse
//   share_of_peak    of what a loop on registers alone reaches with the same instruction, measured just before
//   times_libtorch   faster than LibTorch's fp32 cholesky, cholesky_inverse and cholesky on as many threads, taken in turns
//   error            root mean square of ΔU_ij / U_ii against float64; times_error: over LibTorch's
// Conditions: `easy` is the Gram matrix of 2 K rows; `hard` of K / 4 rows that share most of their direction, with 0.005 of
// its mean diagonal added. One thread is timed by its own CPU time, two by the clock on the wall. `gramian bench factor`
// prints the same of the level in use.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "eval/kernel_speed.h"

namespace gramian {
namespace {

void invert(benchmark::State& state, int64_t columns, bool hard, CpuLevel level, int threads) {
  KernelFigure figure;
  for (auto _ : state) {
    figure = measure_factor({.columns = columns,
                             .level = level,
                             .threads = threads,
                             .hard = hard,
                             .repeats = columns > 2048 ? 3 : 6});
    state.SetIterationTime(figure.seconds);
  }
  for (const auto& [name, value] : figure.counters()) state.counters[name] = value;
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
          benchmark::RegisterBenchmark(
              label.c_str(), [=](benchmark::State& state) { invert(state, columns, hard, level, threads); })
              ->Unit(benchmark::kMillisecond)
              ->UseManualTime()
              ->Iterations(1);
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
