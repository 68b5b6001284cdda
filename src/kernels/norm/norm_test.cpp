#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/test_values.h"

namespace gramian {
namespace {

constexpr NormForm kForms[] = {NormForm::rms, NormForm::rms_offset, NormForm::rms_once, NormForm::layer};

float rounded(DType type, double value) {
  const auto f32 = static_cast<float>(value);
  if (type == DType::f16) return f16_to_f32(f16_from_f32(f32));
  return type == DType::bf16 ? bf16_to_f32(bf16_from_f32(f32)) : f32;
}

std::vector<std::byte> stored(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    const uint16_t half = type == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value);
    const auto* from = type == DType::f32 ? reinterpret_cast<const std::byte*>(&value)
                                          : reinterpret_cast<const std::byte*>(&half);
    bytes.insert(bytes.end(), from, from + (type == DType::f32 ? 4 : 2));
  }
  return bytes;
}

struct Case {
  NormForm form;
  DType type;
  int64_t rows, size;
  bool bias;
  std::vector<float> x{}, weight{}, shift{};
};

Case random_case(NormForm form, DType type, int64_t rows, int64_t size, bool bias, uint32_t seed) {
  Case made{form, type, rows, size, bias};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * size; ++i) made.x.push_back(rounded(type, normal(random) + 0.5f));
  for (int64_t i = 0; i < size; ++i) {
    made.weight.push_back(normal(random));
    made.shift.push_back(normal(random));
  }
  return made;
}

std::vector<std::byte> run(CpuLevel level, const Case& given) {
  const std::vector<std::byte> x = stored(given.type, given.x);
  std::vector<std::byte> y(x.size());
  norm_rows(level,
            {.form = given.form,
             .type = given.type,
             .x = x.data(),
             .rows = given.rows,
             .size = given.size,
             .weight = given.weight.data(),
             .bias = given.bias ? given.shift.data() : nullptr,
             .eps = 1e-5f},
            y.data());
  return y;
}

// In double.
double exact(const Case& given, int64_t row, int64_t i) {
  const float* x = given.x.data() + row * given.size;
  double mean = 0, square = 0;
  if (given.form == NormForm::layer) {
    for (int64_t j = 0; j < given.size; ++j) mean += x[j];
    mean /= static_cast<double>(given.size);
  }
  for (int64_t j = 0; j < given.size; ++j) square += (x[j] - mean) * (x[j] - mean);
  const double n = (x[i] - mean) / std::sqrt(square / static_cast<double>(given.size) + 1e-5);
  const double weight = given.weight[i];
  if (given.form == NormForm::rms) return n * rounded(given.type, weight);
  if (given.form == NormForm::rms_offset) return n * (1 + weight);
  return n * weight + (given.bias ? given.shift[i] : 0);
}

TEST(Norm, FollowsTheFormulasAndEveryLevelGivesTheSameBits) {
  uint32_t seed = 0;
  for (const NormForm form : kForms) {
    for (const DType type : kTestTypes) {
      for (const int64_t size : {1, 2, 15, 16, 17, 31, 33, 64, 100, 1024}) {
        for (const bool bias : {false, true}) {
          if (bias && form != NormForm::layer) continue;
          const Case given = random_case(form, type, 3, size, bias, ++seed);
          const std::vector<std::byte> reference = run(CpuLevel::reference, given);
          // One rounding to the type, two where the form has two, and a few of f32; x and its mean may cancel.
          const double unit = type == DType::f32 ? 1e-5 : type == DType::f16 ? 0x1p-10 : 0x1p-7;
          for (int64_t i = 0; i < 3 * size; ++i) {
            const double expected = exact(given, i / size, i % size);
            EXPECT_NEAR(loaded(type, reference, i), expected, unit * (std::fabs(expected) + 0.01))
                << "form " << static_cast<int>(form) << " size " << size;
          }
          for (int l = 1; l <= static_cast<int>(detected_cpu_level()); ++l)
            EXPECT_EQ(run(static_cast<CpuLevel>(l), given), reference) << l << " size " << size;
        }
      }
    }
  }
}

TEST(Norm, InfinityAndNanStayInTheirRows) {
  Case given = random_case(NormForm::rms, DType::bf16, 3, 40, false, 9);
  given.x[45] = INFINITY;
  given.x[85] = NAN;
  for (int l = 0; l <= static_cast<int>(detected_cpu_level()); ++l) {
    const std::vector<std::byte> y = run(static_cast<CpuLevel>(l), given);
    for (int64_t i = 0; i < 40; ++i) EXPECT_TRUE(std::isfinite(loaded(DType::bf16, y, i)));
    EXPECT_TRUE(std::isnan(loaded(DType::bf16, y, 45)));
    for (int64_t i = 80; i < 120; ++i) EXPECT_TRUE(std::isnan(loaded(DType::bf16, y, i)));
  }
}

}  // namespace
}  // namespace gramian
