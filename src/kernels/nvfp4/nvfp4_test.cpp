#include "kernels/nvfp4/nvfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/small_floats.h"

namespace gramian::nvfp4 {
namespace {

std::vector<float> gaussian(int64_t count, uint32_t seed, float sigma = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// XᵀX of `tokens` random rows, whose columns have energies that differ.
std::vector<float> hessian(int tokens, uint32_t seed) {
  const std::vector<float> x = gaussian(tokens * kBlock, seed);
  std::vector<float> h(kBlock * kBlock, 0);
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < kBlock; ++i) {
      for (int j = 0; j < kBlock; ++j) {
        const float size = std::exp2(static_cast<float>(i % 4 + j % 4));
        h[i * kBlock + j] += size * x[t * kBlock + i] * x[t * kBlock + j];
      }
    }
  }
  return h;
}

// The search in its plainest form: every scale, no early end.
uint8_t plain_search(const float* x, const float* root, float factor) {
  int best = 1;
  const auto error = [&](int code) {
    return block_error(x, root, kE4m3[static_cast<size_t>(code)] * factor);
  };
  for (int code = 2; code <= kLargestScale; ++code) best = error(code) < error(best) ? code : best;
  return static_cast<uint8_t>(best);
}

TEST(SmallFloats, RoundToTheNearestCodeTiesToEven) {
  for (unsigned code = 0; code <= kLargestScale; ++code) {
    EXPECT_EQ(e4m3_from_f32(kE4m3[code]), code);
    if (code == kLargestScale) break;
    const float low = kE4m3[code], high = kE4m3[code + 1], middle = (low + high) / 2;
    EXPECT_EQ(e4m3_from_f32(middle), code + code % 2) << code;
    EXPECT_EQ(e4m3_from_f32(std::nextafter(middle, low)), code);
    EXPECT_EQ(e4m3_from_f32(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(e4m3_from_f32(1e30f), kLargestScale);
  EXPECT_EQ(e4m3_from_f32(NAN), 0x7f);
  EXPECT_EQ(kE4m3[kUnitScale], 1);
  EXPECT_EQ(kE4m3[1], 0x1p-9f);
}

TEST(Nvfp4, CodesAreTheNearestValuesTiesToEven) {
  const float x[] = {0.25f, 0.26f, 0.75f,  1.25f,  1.75f, 2.5f, 3.5f, 5,
                     5.01f, 100,   -0.25f, -0.75f, -0.0f, 0,    -7,   4};
  const std::vector<uint8_t> expected = {0, 1, 2, 2, 4, 4, 6, 6, 7, 7, 8, 10, 0, 0, 15, 6};
  std::vector<uint8_t> codes(kBlock);
  quantize(x, kUnitScale, 1, codes.data());
  EXPECT_EQ(codes, expected);
  EXPECT_EQ(value(15, kUnitScale, 0.5f), -3);
}

TEST(Nvfp4, ScaleOfTheLargestMagnitude) {
  std::vector<float> x(kBlock, 0);
  EXPECT_EQ(largest_magnitude_scale(x.data(), 1), kUnitScale) << "zeros";
  x[3] = -6;
  EXPECT_EQ(largest_magnitude_scale(x.data(), 1), kUnitScale);
  x[3] = 1e-9f;
  EXPECT_EQ(largest_magnitude_scale(x.data(), 1), 1) << "never 0";
  x[3] = 1e9f;
  EXPECT_EQ(largest_magnitude_scale(x.data(), 1), kLargestScale);
}

TEST(Nvfp4, RootGivesTheQuadraticForm) {
  for (const int tokens : {1, 7, 16, 40}) {
    const std::vector<float> h = hessian(tokens, 5);
    float root[kBlock * kBlock];
    upper_root(h.data(), root);
    double largest = 0, error = 0;
    for (int i = 0; i < kBlock; ++i) {
      largest = std::max(largest, static_cast<double>(h[i * kBlock + i]));
      for (int j = 0; j < kBlock; ++j) {
        if (j < i) {
          EXPECT_EQ(root[i * kBlock + j], 0);
        }
        double sum = 0;
        for (int k = 0; k < kBlock; ++k)
          sum += static_cast<double>(root[k * kBlock + i]) * static_cast<double>(root[k * kBlock + j]);
        error = std::max(error, std::fabs(sum - static_cast<double>(h[i * kBlock + j])));
      }
    }
    EXPECT_LT(error, 2e-6 * largest) << tokens << " tokens";
  }
}

// Every level gives the codes of the plain search, whatever stands in the other lanes.
TEST(Nvfp4, SearchFindsTheBestScaleAtEveryLevel) {
  constexpr float kFactor = 3e-4f;
  for (const int64_t rows : {1, 3, 8, 17, 37}) {
    for (const int tokens : {0, 5, 60}) {
      std::vector<float> x = gaussian(rows * 40, static_cast<uint32_t>(rows), 0.1f);
      for (int64_t row = 0; row < rows; ++row) {
        // Rows of other sizes, one of zeros, one with an outlier.
        const float size = row % 5 == 1 ? 0 : std::exp2(static_cast<float>(row % 7) - 3);
        for (int64_t i = 0; i < 40; ++i) x[row * 40 + i] *= size;
        if (row % 5 == 2) x[row * 40 + 4] = 1;
      }
      float root[kBlock * kBlock];
      if (tokens > 0) upper_root(hessian(tokens, 9).data(), root);
      const float* const used = tokens > 0 ? root : nullptr;
      for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
        std::vector<uint8_t> found(static_cast<size_t>(3 * rows), 0xee);
        search_scales(static_cast<CpuLevel>(level), {x.data(), 40, rows, used}, kFactor, {}, found.data(), 3);
        for (int64_t row = 0; row < rows; ++row) {
          const uint8_t expected =
              row % 5 == 1 ? kUnitScale : plain_search(x.data() + row * 40, used, kFactor);
          ASSERT_EQ(found[3 * row], expected) << "row " << row << " of " << rows << ", level " << level;
          ASSERT_EQ(found[3 * row + 1], 0xee);
        }
      }
    }
  }
}

TEST(Nvfp4, SearchWeighsColumnsByTheirHessian) {
  std::vector<float> x(kBlock, 0.9f), h(kBlock * kBlock, 0);
  x[0] = 6.5f;
  for (int i = 0; i < kBlock; ++i) h[i * kBlock + i] = i == 0 ? 1e-6f : 1;
  float root[kBlock * kBlock];
  upper_root(h.data(), root);
  uint8_t plain = 0, weighted = 0;
  search_scales(cpu_level(), {x.data(), kBlock, 1, nullptr}, 1, {}, &plain, 1);
  search_scales(cpu_level(), {x.data(), kBlock, 1, root}, 1, {}, &weighted, 1);
  EXPECT_NE(plain, weighted);
  EXPECT_LT(block_error(x.data(), root, kE4m3[weighted]), block_error(x.data(), root, kE4m3[plain]));
}

TEST(Nvfp4, MultiplesAreTheOnlyCandidates) {
  const std::vector<float> x = gaussian(kBlock, 4);
  const float multiples[] = {0.5f, 0.75f, 1, 1.25f};
  uint8_t found = 0, best = 0;
  search_scales(cpu_level(), {x.data(), kBlock, 1, nullptr}, 0.01f, {false, multiples}, &found, 1);
  float least = INFINITY;
  for (const float multiple : multiples) {
    std::vector<float> scaled = x;
    for (float& value : scaled) value *= multiple;
    const uint8_t code = largest_magnitude_scale(scaled.data(), 0.01f);
    const float error = block_error(x.data(), nullptr, kE4m3[code] * 0.01f);
    if (error < least) best = code;
    least = std::min(least, error);
  }
  EXPECT_EQ(found, best);
}

}  // namespace
}  // namespace gramian::nvfp4
