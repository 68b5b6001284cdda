#include "kernels/gemv/gemv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/test_values.h"

namespace gramian {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};

struct Case {
  DType type;
  int64_t rows, columns;
  std::vector<std::byte> values{};
  std::vector<float> wide{}, x{}, scales{};
};

Case random_case(DType type, int64_t rows, int64_t columns, uint32_t seed) {
  Case made{type, rows, columns};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto put = [&](const auto& bits) {
    const auto* from = reinterpret_cast<const std::byte*>(&bits);
    made.values.insert(made.values.end(), from, from + sizeof(bits));
  };
  for (int64_t i = 0; i < rows * columns; ++i) {
    const float value = normal(random);
    if (type == DType::i8) {
      put(static_cast<int8_t>(static_cast<int>(random() % 256) - 128));
      made.wide.push_back(static_cast<float>(static_cast<int8_t>(made.values.back())));
      continue;
    }
    if (type == DType::f32) put(value);
    if (type == DType::f16) put(f16_from_f32(value));
    if (type == DType::bf16) put(bf16_from_f32(value));
    made.wide.push_back(loaded(type, made.values, i));
  }
  for (int64_t i = 0; i < columns; ++i) made.x.push_back(normal(random));
  for (int64_t i = 0; i < rows; ++i) made.scales.push_back(std::exp(normal(random)));
  return made;
}

std::vector<float> run(CpuLevel level, const Case& given, bool scaled, int64_t first, int64_t count) {
  std::vector<float> y(static_cast<size_t>(given.rows), -7.0f);
  multiply_vector(level,
                  {.type = given.type,
                   .values = given.values.data(),
                   .scales = scaled ? given.scales.data() : nullptr,
                   .columns = given.columns},
                  given.x.data(), first, count, y.data());
  return y;
}

TEST(GemvTest, EveryLevelGivesTheSumInTheSameBits) {
  uint32_t seed = 1;
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 63, 64, 65, 129, 640, 1000}) {
      for (const bool scaled : {false, true}) {
        const Case given = random_case(type, 5, columns, seed++);
        const std::vector<float> reference = run(CpuLevel::reference, given, scaled, 0, 5);
        for (int64_t r = 0; r < 5; ++r) {
          double sum = 0, magnitude = 0;
          for (int64_t c = 0; c < columns; ++c) {
            const double product = static_cast<double>(given.wide[static_cast<size_t>(r * columns + c)]) *
                                   given.x[static_cast<size_t>(c)];
            sum += product;
            magnitude += std::abs(product);
          }
          const double scale = scaled ? given.scales[static_cast<size_t>(r)] : 1;
          EXPECT_NEAR(reference[static_cast<size_t>(r)], scale * sum, 2e-6 * scale * magnitude);
        }
        for (int level = 1; level <= static_cast<int>(detected_cpu_level()); ++level)
          EXPECT_EQ(run(static_cast<CpuLevel>(level), given, scaled, 0, 5), reference) << columns;
      }
    }
  }
}

TEST(GemvTest, WritesItsRowsAlone) {
  const Case given = random_case(DType::bf16, 6, 96, 9);
  const std::vector<float> all = run(cpu_level(), given, true, 0, 6),
                           some = run(cpu_level(), given, true, 2, 3);
  for (size_t r = 0; r < 6; ++r) EXPECT_EQ(some[r], r >= 2 && r < 5 ? all[r] : -7.0f);
}

}  // namespace
}  // namespace gramian
