#include "kernels/w4a8/w4a8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/float16.h"

namespace gramian::w4a8 {
namespace {

constexpr Activation kTypes[] = {Activation::f32, Activation::f16, Activation::bf16};
const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) found.push_back(static_cast<CpuLevel>(i));
  return found;
}

// An activation row in its own type, as bytes, and the exact values that it holds.
struct Row {
  std::vector<float> f32;
  std::vector<uint16_t> half;
  std::vector<float> exact;
  const void* data(Activation type) const {
    return type == Activation::f32 ? static_cast<const void*>(f32.data()) : half.data();
  }
};

Row stored(Activation type, const std::vector<float>& values) {
  Row row;
  row.f32 = values;
  for (const float value : values) {
    row.half.push_back(type == Activation::f16 ? f16_from_f32(value) : bf16_from_f32(value));
    row.exact.push_back(type == Activation::f32   ? value
                        : type == Activation::f16 ? f16_to_f32(row.half.back())
                                                  : bf16_to_f32(row.half.back()));
  }
  return row;
}

float rounded(Activation type, float value) {
  if (type == Activation::f16) return f16_to_f32(f16_from_f32(value));
  if (type == Activation::bf16) return bf16_to_f32(bf16_from_f32(value));
  return value;
}

TEST(W4a8Quantize, FollowsTheFormulaAtEveryLevel) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const Activation type : kTypes) {
    // 1e-6 and below make f16 scales subnormal or zero.
    for (const float size : {1.0f, 60.0f, 1e-3f, 2e-6f, 1e-7f, 3e4f}) {
      for (const int64_t k : {0, 1, 15, 16, 17, 97}) {
        std::vector<float> values(static_cast<size_t>(k));
        for (float& value : values) value = size * std::clamp(normal(random), -2.0f, 2.0f);
        const Row row = stored(type, values);
        float amax = 0;
        for (const float value : row.exact) amax = std::max(amax, std::fabs(value));
        const float sa = rounded(type, amax / 127.0f);
        std::vector<int> expected;
        for (const float value : row.exact) {
          expected.push_back(sa == 0 ? 0
                                     : std::clamp(static_cast<int>(std::nearbyint(value / sa)), -128, 127));
        }
        for (const CpuLevel level : levels()) {
          std::vector<int8_t> q(static_cast<size_t>(k), 99);
          float scale = -1;
          quantize_rows(level, type, row.data(type), 1, k, q.data(), &scale);
          EXPECT_EQ(std::bit_cast<uint32_t>(scale), std::bit_cast<uint32_t>(sa))
              << name(level) << " size " << size;
          EXPECT_EQ(std::vector<int>(q.begin(), q.end()), expected)
              << name(level) << " size " << size << " k " << k;
        }
      }
    }
  }
}

TEST(W4a8Quantize, TiesGoToEvenAndSubnormalScalesReachTheClamp) {
  for (const CpuLevel level : levels()) {
    const std::vector<float> ties = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
    std::vector<int8_t> q(ties.size());
    float scale = 0;
    for (const Activation type : kTypes) {
      const Row row = stored(type, ties);
      quantize_rows(level, type, row.data(type), 1, static_cast<int64_t>(ties.size()), q.data(), &scale);
      EXPECT_EQ(scale, 1.0f);
      const std::vector<int> head(q.begin(), q.begin() + 7);
      EXPECT_EQ(head, (std::vector<int>{127, 0, 2, 2, 0, -2, -2}));
    }
    // amax / 127 = 1.4 units of 2^-24 rounds to one unit: x / sa = ±178.
    const float tiny = 178 * 0x1p-24f;
    const Row row = stored(Activation::f16, {tiny, -tiny});
    quantize_rows(level, Activation::f16, row.data(Activation::f16), 1, 2, q.data(), &scale);
    EXPECT_EQ(scale, 0x1p-24f);
    EXPECT_EQ(q[0], 127);
    EXPECT_EQ(q[1], -128);
  }
}

TEST(W4a8Quantize, SpecialRowsGiveZeroCodesAndASpeakingScale) {
  const float underflow = 63 * 0x1p-24f;  // amax / 127 is below half the smallest f16
  for (const CpuLevel level : levels()) {
    for (const Activation type : kTypes) {
      const std::vector<std::vector<float>> rows = {
          {0, -0.0f, 0}, {1, kInf, 2}, {1, -kInf, kNan}, {kNan, 1, 5}};
      for (size_t i = 0; i < rows.size(); ++i) {
        const Row row = stored(type, rows[i]);
        std::vector<int8_t> q(3, 99);
        float scale = -1;
        quantize_rows(level, type, row.data(type), 1, 3, q.data(), &scale);
        EXPECT_EQ(q, (std::vector<int8_t>{0, 0, 0})) << name(level) << " row " << i;
        if (i == 0) {
          EXPECT_EQ(scale, 0.0f);
        } else if (i == 1) {
          EXPECT_EQ(scale, kInf);
        } else {
          EXPECT_TRUE(std::isnan(scale)) << name(level) << " row " << i << " " << scale;
        }
      }
    }
    const Row row = stored(Activation::f16, {underflow, -underflow});
    std::vector<int8_t> q(2, 99);
    float scale = -1;
    quantize_rows(level, Activation::f16, row.data(Activation::f16), 1, 2, q.data(), &scale);
    EXPECT_EQ(scale, 0.0f);
    EXPECT_EQ(q, (std::vector<int8_t>{0, 0}));
  }
}

TEST(W4a8Rescale, MultipliesInOrderAndAddsTheBiasAfterRounding) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const int64_t rows = 3, channels = 37, stride = 41;
  std::vector<int32_t> acc(rows * channels);
  for (int32_t& value : acc) value = static_cast<int32_t>(random());
  acc[0] = std::numeric_limits<int32_t>::min();
  const std::vector<float> row_scale = {1e-6f, 0.0f, 3.7e-5f};
  std::vector<float> channel_scale(channels);
  for (float& value : channel_scale) value = std::fabs(normal(random)) + 0.01f;
  for (const Activation type : kTypes) {
    std::vector<float> bias(channels);
    for (float& value : bias) value = rounded(type, normal(random) * 50);
    for (const bool with_bias : {false, true}) {
      for (const CpuLevel level : levels()) {
        std::vector<float> y32(rows * stride, 123.0f);
        std::vector<uint16_t> y16(rows * stride, 123);
        void* y = type == Activation::f32 ? static_cast<void*>(y32.data()) : y16.data();
        rescale(level, type, acc.data(), rows, channels, row_scale.data(), channel_scale.data(),
                with_bias ? bias.data() : nullptr, y, stride);
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t n = 0; n < stride; ++n) {
            const int64_t at = m * stride + n;
            const float found = type == Activation::f32   ? y32[at]
                                : type == Activation::f16 ? f16_to_f32(y16[at])
                                                          : bf16_to_f32(y16[at]);
            if (n >= channels) {
              EXPECT_TRUE(type == Activation::f32 ? y32[at] == 123.0f
                                                  : y16[at] == 123);  // between rows: untouched
              continue;
            }
            float product = static_cast<float>(acc[m * channels + n]) * row_scale[m];
            product = product * channel_scale[n];
            float expected = rounded(type, product);
            if (with_bias) expected = rounded(type, expected + bias[n]);
            EXPECT_EQ(found, expected) << name(level) << " " << m << "," << n;
          }
        }
      }
    }
  }
}

TEST(W4a8Rescale, NonFiniteRowScalesStayVisible) {
  const std::vector<int32_t> acc = {0, 0};
  const std::vector<float> channel_scale = {1.0f, 0.5f}, bias = {1.0f, 2.0f};
  for (const CpuLevel level : levels()) {
    for (const float scale : {kInf, kNan}) {
      for (const Activation type : kTypes) {
        std::vector<float> y32(2);
        std::vector<uint16_t> y16(2);
        void* y = type == Activation::f32 ? static_cast<void*>(y32.data()) : y16.data();
        rescale(level, type, acc.data(), 1, 2, &scale, channel_scale.data(), bias.data(), y, 2);
        for (int n = 0; n < 2; ++n) {
          const float found = type == Activation::f32   ? y32[n]
                              : type == Activation::f16 ? f16_to_f32(y16[n])
                                                        : bf16_to_f32(y16[n]);
          EXPECT_TRUE(std::isnan(found)) << name(level);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gramian::w4a8
