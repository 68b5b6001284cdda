// The search over 126 scales for each block. weights/s counts the weights of the matrix, not those of its candidates. The case called tiny
// runs in the test suite.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/nvfp4/nvfp4.h"

namespace gramian {
namespace {

void search(benchmark::State& state, int64_t rows, int64_t columns, bool weighted, CpuLevel level) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> x(static_cast<size_t>(rows * columns)), hessian(nvfp4::kBlock * nvfp4::kBlock, 0.1f);
  for (float& value : x) value = normal(random);
  for (int64_t i = 0; i < nvfp4::kBlock; ++i) hessian[i * (nvfp4::kBlock + 1)] = 1;
  float root[nvfp4::kBlock * nvfp4::kBlock];
  nvfp4::upper_root(hessian.data(), root);
  std::vector<uint8_t> scales(static_cast<size_t>(rows * columns / nvfp4::kBlock));
  for (auto _ : state) {
    for (int64_t column = 0; column < columns; column += nvfp4::kBlock) {
      nvfp4::search_scales(level, {x.data() + column, columns, rows, weighted ? root : nullptr},
                           0.1f / nvfp4::kRange, {}, scales.data() + column / nvfp4::kBlock,
                           columns / nvfp4::kBlock);
    }
  }
  state.counters["weights/s"] =
      benchmark::Counter(static_cast<double>(rows * columns), benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    const auto one = static_cast<CpuLevel>(level);
    const std::string suffix = "/" + std::string(name(one));
    for (const bool weighted : {false, true}) {
      const std::string kind = weighted ? "local_hessian" : "mse";
      benchmark::RegisterBenchmark(("nvfp4/" + kind + "/1024x1024" + suffix).c_str(), search, 1024, 1024,
                                   weighted, one)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RegisterBenchmark("nvfp4/tiny", search, 9, 32, true, cpu_level());
  return true;
}();

}  // namespace
}  // namespace gramian

BENCHMARK_MAIN();
