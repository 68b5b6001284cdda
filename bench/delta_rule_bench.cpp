// The delta rule's kernel against the loop over tokens in LibTorch's operations, on one row of a model's heads and one thread, taken in turns. Timed
// by the thread's own CPU time.
//   times_loop   how many times as fast as the loop
//   tokens/s     of one layer's delta rule
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "models/blocks/delta_rule.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Shape {
  const char* name;
  int64_t tokens, key_heads, heads, dim;
  bool per_channel;
};
constexpr Shape kShapes[] = {{"gdn_tiny", 70, 2, 4, 16, false},
                             {"kda_tiny", 70, 2, 2, 16, true},
                             {"gdn_512_qwen3_next", 512, 16, 32, 128, false},
                             {"kda_512_kimi_linear", 512, 32, 32, 128, true},
                             {"gdn_4096_qwen3_next", 4096, 16, 32, 128, false},
                             {"kda_4096_kimi_linear", 4096, 32, 32, 128, true}};

// Numbers in [-1, 1) without a pattern.
at::Tensor noise(at::IntArrayRef shape, double step) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor phase = tensor::arange(count, at::kDouble).mul_(step);
  return phase.sub(phase.floor()).mul_(2).sub_(1).to(at::kFloat).view(shape);
}

DeltaRuleInput input_of(const Shape& s) {
  const std::vector<int64_t> gates = s.per_channel ? std::vector<int64_t>{1, s.tokens, s.heads, s.dim}
                                                   : std::vector<int64_t>{1, s.tokens, s.heads};
  return {.q = noise({1, s.tokens, s.key_heads, s.dim}, 0.61803398875),
          .k = noise({1, s.tokens, s.key_heads, s.dim}, 0.41421356237),
          .v = noise({1, s.tokens, s.heads, s.dim}, 0.73205080757),
          .g = noise(gates, 0.23606797750).sub(1).mul(0.2),
          .beta = noise({1, s.tokens, s.heads}, 0.64575131106).sigmoid()};
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Form>
double seconds_of(const Form& form, const DeltaRuleInput& input, const Shape& s) {
  at::Tensor state = tensor::zeros({1, s.heads, s.dim, s.dim}, at::kFloat);
  const double start = now();
  const at::Tensor out = form(input, state);
  benchmark::DoNotOptimize(out.const_data_ptr());
  return now() - start;
}

void compare(benchmark::State& state, const Shape& shape) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  const DeltaRuleInput input = input_of(shape);
  double kernel = 1e30, loop = 1e30;
  for (auto _ : state) {
    const double once = seconds_of(delta_rule, input, shape);
    state.SetIterationTime(once);
    kernel = std::min(kernel, once);
    loop = std::min(loop, seconds_of(recurrent_delta_rule, input, shape));
  }
  state.counters["times_loop"] = loop / kernel;
  state.counters["tokens/s"] = static_cast<double>(shape.tokens) / kernel;
}

void register_all() {
  for (const Shape& shape : kShapes) {
    benchmark::RegisterBenchmark((std::string("delta_rule/") + shape.name).c_str(), compare, shape)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  gramian::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
