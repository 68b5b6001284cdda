// Every codec over level on one thread: weights of a 64 x 2048 matrix encoded, with importance and without, and decoded; `tiny` is a
// 2 x 512 one. Bytes are those of f32 weights, items are weights; `checksum` pins the result.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/codecs/codec.h"
#include "kernels/codecs/iq2_xxs_tables.h"

namespace gramian {
namespace {

struct Shape {
  const char* name;
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{"tiny", 2, 512}, {"64x2048", 64, 2048}};

std::vector<float> weights(const Shape& shape) {
  std::mt19937 random(3);
  std::student_t_distribution<float> heavy(5.0f);
  std::vector<float> x(static_cast<size_t>(shape.rows * shape.columns));
  for (float& value : x) value = 0.02f * heavy(random);
  return x;
}

std::vector<float> importance(const Shape& shape) {
  std::mt19937 random(5);
  std::lognormal_distribution<float> log_normal(0, 1.5f);
  std::vector<float> w(static_cast<size_t>(shape.columns));
  for (float& value : w) value = log_normal(random);
  return w;
}

void count(benchmark::State& state, const Shape& shape, const std::vector<uint8_t>& blocks) {
  state.SetItemsProcessed(state.iterations() * shape.rows * shape.columns);
  state.SetBytesProcessed(state.iterations() * shape.rows * shape.columns * 4);
  state.counters["checksum"] = static_cast<double>(std::accumulate(blocks.begin(), blocks.end(), int64_t{0}));
}

void encode(benchmark::State& state, const Codec& codec, const Shape& shape, EncodeRow encode_row,
            CpuLevel level, bool weighted) {
  const auto x = weights(shape), w = importance(shape);
  std::vector<uint8_t> blocks(static_cast<size_t>(shape.rows * codec.row_bytes(shape.columns)));
  (void)iq2_xxs::tables();
  for (auto _ : state) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      encode_row(level, x.data() + row * shape.columns, shape.columns, weighted ? w.data() : nullptr,
                 blocks.data() + row * codec.row_bytes(shape.columns));
    }
    benchmark::DoNotOptimize(blocks.data());
  }
  count(state, shape, blocks);
}

void decode(benchmark::State& state, const Codec& codec, const Shape& shape) {
  auto x = weights(shape);
  const auto w = importance(shape);
  std::vector<uint8_t> blocks(static_cast<size_t>(shape.rows * codec.row_bytes(shape.columns)));
  encode_rows(codec, x.data(), shape.rows, shape.columns,
              {.importance = w.data(), .level = detected_cpu_level()}, blocks.data(), "bench");
  for (auto _ : state) {
    decode_rows(codec, blocks.data(), shape.rows, shape.columns, nullptr, x.data());
    benchmark::DoNotOptimize(x.data());
  }
  count(state, shape, blocks);
}

void register_all() {
  for (const Codec& codec : codecs()) {
    for (const Shape& shape : kShapes) {
      const std::string tail = "/" + std::string(codec.name) + "/" + shape.name;
      benchmark::RegisterBenchmark(("decode" + tail).c_str(), decode, codec, shape);
      // Levels above avx512 use its functions.
      for (int i = 0; i <= static_cast<int>(std::min(detected_cpu_level(), CpuLevel::avx512)); ++i) {
        const auto level = static_cast<CpuLevel>(i);
        const std::string full = tail + "/" + std::string(name(level));
        if (!codec.needs_importance)
          benchmark::RegisterBenchmark(("encode" + full).c_str(), encode, codec, shape, codec.encode, level,
                                       false);
        benchmark::RegisterBenchmark(("encode_weighted" + full).c_str(), encode, codec, shape, codec.encode,
                                     level, true);
        if (codec.anchored != nullptr)
          benchmark::RegisterBenchmark(("encode_anchored" + full).c_str(), encode, codec, shape,
                                       codec.anchored, level, true);
      }
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
