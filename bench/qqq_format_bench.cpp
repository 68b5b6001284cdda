// Packing and unpacking of one QQQ layer, by shape and layout.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>

#include "formats/qqq.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Shape {
  const char* name;
  int64_t n, k, group_size;  // resolved
};
constexpr Shape kShapes[] = {{"tiny_row", 128, 192, 192},
                             {"tiny_g128", 128, 256, 128},
                             {"4864x896_row", 4864, 896, 896},
                             {"4864x896_g128", 4864, 896, 128}};

QuantizedLinear random_module(const Shape& shape) {
  std::mt19937 random(1);
  QuantizedLinear module;
  module.group_size = shape.group_size;
  module.codes = tensor::empty({shape.n, shape.k}, at::kChar);
  auto* codes = module.codes.mutable_data_ptr<int8_t>();
  for (int64_t i = 0; i < module.codes.numel(); ++i)
    codes[i] = static_cast<int8_t>(static_cast<int>(random() % 15) - 7);
  module.scale = tensor::full({shape.n, shape.k / shape.group_size}, 0.01, at::kFloat);
  return module;
}

void pack(benchmark::State& state, const Shape& shape) {
  const QuantizedLinear module = random_module(shape);
  for (auto _ : state) {
    const qqq::Packed packed = qqq::pack(module, qqq::channel_scale_from_codes(module), {}, "bench");
    benchmark::DoNotOptimize(packed.B.const_data_ptr());
  }
  state.SetItemsProcessed(state.iterations() * shape.n * shape.k);
}

void unpack(benchmark::State& state, const Shape& shape) {
  const QuantizedLinear module = random_module(shape);
  const qqq::Packed packed = qqq::pack(module, qqq::channel_scale_from_codes(module), {}, "bench");
  for (auto _ : state) {
    const qqq::Decoded decoded = qqq::unpack(packed, shape.n, shape.k, "bench");
    benchmark::DoNotOptimize(decoded.values.const_data_ptr());
  }
  state.SetItemsProcessed(state.iterations() * shape.n * shape.k);
}

void register_all() {
  for (const Shape& shape : kShapes) {
    benchmark::RegisterBenchmark((std::string("pack/") + shape.name).c_str(), pack, shape);
    benchmark::RegisterBenchmark((std::string("unpack/") + shape.name).c_str(), unpack, shape);
  }
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  gramian::tensor::set_threads(1);
  gramian::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
