// W4A8 on one thread, over shape x level. Each benchmark measures its limit and LibTorch's bf16 linear of the same shape in turns with
// itself, so that a busy machine slows them alike: `of_limit` is the share of the limit, `x_torch` how many times as fast as LibTorch
// (both medians of the turns). Few rows are bounded by reading the weights (limit: read bandwidth), many by
// multiplying (limit: int8 peak). `checksum` pins the result.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "formats/qqq.h"
#include "kernels/peak.h"
#include "runtime/qqq_linear.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Shape {
  const char* name;
  int64_t rows, channels, k;
  bool grouped;
};
// The codes of the decode shapes take 64 MiB and more: beyond the last-level cache.
constexpr Shape kShapes[] = {{"tiny_few", 2, 128, 256, true},
                             {"tiny_many", 7, 128, 192, false},
                             {"decode_16384x8192_groups", 1, 16384, 8192, true},
                             {"decode_16384x8192_rows", 1, 16384, 8192, false},
                             {"decode_4_rows_16384x8192_groups", 4, 16384, 8192, true},
                             {"prefill_512_4096x4096_groups", 512, 4096, 4096, true},
                             {"prefill_512_4096x4096_rows", 512, 4096, 4096, false},
                             {"prefill_512_3072x1024_groups", 512, 3072, 1024, true},
                             {"prefill_16_4096x4096_groups", 16, 4096, 4096, true}};

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

at::Tensor random_activations(const Shape& shape) {
  at::Tensor x = tensor::empty({shape.rows, shape.k}, at::kFloat);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  auto* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] = normal(random);
  return x.to(at::kBFloat16);
}

qqq::Codes random_codes(const Shape& shape) {
  qqq::Codes codes;
  codes.values = tensor::empty({shape.channels, shape.k}, at::kChar);
  std::mt19937 random(3);
  auto* data = codes.values.mutable_data_ptr<int8_t>();
  for (int64_t i = 0; i < codes.values.numel(); ++i)
    data[i] = static_cast<int8_t>(static_cast<int>(random() % 16) - 8);
  codes.s_channel = tensor::full({shape.channels}, 0.001, at::kFloat);
  if (shape.grouped) codes.ratios = tensor::full({shape.k / 128, shape.channels}, 7.25, at::kFloat);
  return codes;
}

struct Limit {
  std::shared_ptr<ThreadPool> pool = std::make_shared<ThreadPool>(1);
  PageArena arena;
  std::shared_ptr<std::byte[]> memory;
  int64_t size = 0;
};

// Seconds that the work of `shape` takes at least.
double limit_seconds(const Shape& shape, CpuLevel level, int64_t weight_bytes, Limit& limit) {
  if (shape.rows <= 4) {
    if (limit.size == 0) {
      limit.size = std::max(weight_bytes, int64_t{1} << 20);
      limit.memory = limit.arena.take(limit.size);
      std::fill_n(limit.memory.get(), limit.size, std::byte{1});
    }
    const std::span<const std::byte> memory(limit.memory.get(), static_cast<size_t>(limit.size));
    return static_cast<double>(weight_bytes) / read_bandwidth(level, *limit.pool, memory, 1);
  }
  return 2.0 * static_cast<double>(shape.rows * shape.channels * shape.k) / int8_peak(level);
}

void layer(benchmark::State& state, const Shape& shape, CpuLevel level) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  Limit limit;
  const QqqLinear linear(random_codes(shape), {limit.pool, level}, "bench");
  const at::Tensor x = random_activations(shape);
  const at::Tensor weight = tensor::full({shape.channels, shape.k}, 0.01, at::kBFloat16);
  std::vector<double> ours, share, ratio;
  double sum = 0;
  for (auto _ : state) {
    const double start = thread_seconds();
    const at::Tensor y = linear.forward(x);
    const double seconds = thread_seconds() - start;
    state.PauseTiming();
    sum = y.to(at::kDouble).sum().item<double>();
    const double torch_start = thread_seconds();
    benchmark::DoNotOptimize(tensor::linear(x, weight, std::nullopt).const_data_ptr());
    ratio.push_back((thread_seconds() - torch_start) / seconds);
    share.push_back(limit_seconds(shape, level, linear.bytes(), limit) / seconds);
    ours.push_back(seconds);
    state.ResumeTiming();
  }
  state.counters["checksum"] = sum;
  state.counters["GMAC/s"] = static_cast<double>(shape.rows * shape.channels * shape.k) / median(ours) / 1e9;
  state.counters["GB/s"] = static_cast<double>(linear.bytes()) / median(ours) / 1e9;
  state.counters["of_limit"] = median(share);
  state.counters["x_torch"] = median(ratio);
}

void register_all() {
  for (const Shape& shape : kShapes) {
    // Levels above avx512_vnni use its functions; the reference is no text to measure at size.
    const bool tiny = std::string(shape.name).starts_with("tiny");
    for (int i = tiny ? 0 : 1; i <= static_cast<int>(std::min(detected_cpu_level(), CpuLevel::avx512_vnni));
         ++i) {
      const auto level = static_cast<CpuLevel>(i);
      auto* registered = benchmark::RegisterBenchmark(
          (std::string(shape.name) + "/" + std::string(name(level))).c_str(), layer, shape, level);
      // Each turn measures its limit, too, which takes far longer than a tiny layer.
      if (tiny) registered->Iterations(10);
    }
  }
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  gramian::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
