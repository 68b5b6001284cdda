// W4A8 kernels over shape x level on one thread, a whole QQQ layer, and LibTorch's bf16 linear on one thread
// for the ratio. Items are multiply-adds; `checksum` pins the result.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/qqq.h"
#include "kernels/w4a8/w4a8.h"
#include "runtime/qqq_linear.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Shape {
  const char* name;
  int64_t rows, channels, k;
};
constexpr Shape kShapes[] = {{"tiny", 5, 128, 192},
                             {"decode_896x4864", 1, 896, 4864},
                             {"prefill_896x896", 256, 896, 896},
                             {"prefill_4864x896", 256, 4864, 896},
                             {"prefill_896x4864", 256, 896, 4864}};

std::vector<int8_t> random_bytes(int64_t count) {
  std::mt19937 random(3);
  std::vector<int8_t> bytes(static_cast<size_t>(count));
  for (int8_t& byte : bytes) byte = static_cast<int8_t>(random() & 255u);
  return bytes;
}

at::Tensor random_activations(const Shape& shape, at::ScalarType type) {
  at::Tensor x = tensor::empty({shape.rows, shape.k}, at::kFloat);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  auto* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] = normal(random);
  return x.to(type);
}

void count_macs(benchmark::State& state, const Shape& shape) {
  state.counters["MAC/s"] = benchmark::Counter(static_cast<double>(shape.rows * shape.channels * shape.k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void matmul(benchmark::State& state, const Shape& shape, CpuLevel level) {
  const auto q = random_bytes(shape.rows * shape.k), v = random_bytes(shape.channels * shape.k);
  std::vector<int32_t> acc(static_cast<size_t>(shape.rows * shape.channels));
  for (auto _ : state) {
    w4a8::int8_matmul(level, q.data(), shape.rows, v.data(), shape.channels, shape.k, acc.data());
    benchmark::DoNotOptimize(acc.data());
  }
  int64_t sum = 0;
  for (const int32_t value : acc) sum += value;
  state.counters["checksum"] = static_cast<double>(sum);
  count_macs(state, shape);
}

void quantize(benchmark::State& state, const Shape& shape, CpuLevel level) {
  const at::Tensor x = random_activations(shape, at::kBFloat16);
  std::vector<int8_t> q(static_cast<size_t>(shape.rows * shape.k));
  std::vector<float> scale(static_cast<size_t>(shape.rows));
  for (auto _ : state) {
    w4a8::quantize_rows(level, w4a8::Activation::bf16, x.const_data_ptr(), shape.rows, shape.k, q.data(),
                        scale.data());
    benchmark::DoNotOptimize(q.data());
  }
  state.SetBytesProcessed(state.iterations() * shape.rows * shape.k * 2);
}

void layer(benchmark::State& state, const Shape& shape, CpuLevel level) {
  const auto bytes = random_bytes(shape.channels * shape.k);
  qqq::Decoded decoded;
  decoded.values = tensor::wrap(bytes.data(), {shape.channels, shape.k}, at::kChar, nullptr);
  decoded.s_channel = tensor::full({shape.channels}, 0.001, at::kFloat);
  const QqqLinear linear(decoded, std::make_shared<ThreadPool>(1), "bench", level);
  const at::Tensor x = random_activations(shape, at::kBFloat16);
  for (auto _ : state) benchmark::DoNotOptimize(linear.forward(x).const_data_ptr());
  count_macs(state, shape);
}

void torch_bf16(benchmark::State& state, const Shape& shape) {
  const tensor::InferenceScope inference;
  tensor::set_threads(1);
  const at::Tensor x = random_activations(shape, at::kBFloat16);
  const at::Tensor weight = tensor::full({shape.channels, shape.k}, 0.01, at::kBFloat16);
  for (auto _ : state) benchmark::DoNotOptimize(tensor::linear(x, weight, std::nullopt).const_data_ptr());
  count_macs(state, shape);
}

void register_all() {
  for (const Shape& shape : kShapes) {
    // Levels above avx512_vnni use its functions.
    for (int i = 0; i <= static_cast<int>(std::min(detected_cpu_level(), CpuLevel::avx512_vnni)); ++i) {
      const auto level = static_cast<CpuLevel>(i);
      const std::string tail = std::string(shape.name) + "/" + std::string(name(level));
      benchmark::RegisterBenchmark(("matmul/" + tail).c_str(), matmul, shape, level);
      benchmark::RegisterBenchmark(("quantize/" + tail).c_str(), quantize, shape, level);
      benchmark::RegisterBenchmark(("layer/" + tail).c_str(), layer, shape, level);
    }
    benchmark::RegisterBenchmark((std::string("torch_bf16_linear/") + shape.name).c_str(), torch_bf16, shape);
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
