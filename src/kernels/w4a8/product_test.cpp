#include "kernels/w4a8/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/w4a8/product_ref.h"
#include "kernels/w4a8/w4a8.h"

namespace gramian::w4a8 {
namespace {

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) found.push_back(static_cast<CpuLevel>(i));
  return found;
}

// A layer by its plain codes and ratios (none: whole rows), and packed.
struct Layer {
  int64_t channels = 0, k = 0;
  std::vector<int8_t> codes;
  std::vector<float> ratios;
  std::vector<uint8_t> packed_codes;
  std::vector<uint16_t> packed_ratios;
  Weights weights;
};

void pack(Layer& layer) {
  layer.packed_codes.resize(static_cast<size_t>(layer.channels * layer.k / 2));
  pack_codes(layer.codes.data(), layer.channels, layer.k, layer.packed_codes.data());
  layer.packed_ratios.resize(layer.ratios.size());
  if (!layer.ratios.empty()) {
    ASSERT_TRUE(pack_ratios(layer.ratios.data(), layer.channels, layer.k, layer.packed_ratios.data()));
  }
  layer.weights = {.codes = layer.packed_codes.data(),
                   .ratios = layer.ratios.empty() ? nullptr : layer.packed_ratios.data(),
                   .channels = layer.channels,
                   .k = layer.k};
}

Layer random_layer(int64_t channels, int64_t k, bool grouped, uint32_t seed) {
  std::mt19937 random(seed);
  Layer layer;
  layer.channels = channels;
  layer.k = k;
  for (int64_t i = 0; i < channels * k; ++i)
    layer.codes.push_back(static_cast<int8_t>(static_cast<int>(random() % 16) - 8));
  // Every f16 is a ratio that a file may hold; most that solvers give lie below 17.
  for (int64_t i = 0; grouped && i < k / kGroup * channels; ++i) {
    const auto bits = static_cast<uint16_t>(random());
    float ratio = static_cast<float>(random() % 4096) / 240;
    if (random() % 8 == 0 && std::isfinite(f16_to_f32(bits))) ratio = f16_to_f32(bits);
    layer.ratios.push_back(f16_to_f32(f16_from_f32(ratio)));
  }
  pack(layer);
  return layer;
}

int value(const Layer& layer, int64_t n, int64_t k) {
  const int code = layer.codes[n * layer.k + k];
  if (layer.ratios.empty()) return 16 * code;
  const double exact = std::nearbyint(double{layer.ratios[k / kGroup * layer.channels + n]} * code);
  return static_cast<int>(std::min(std::max(exact, -128.0), 127.0));
}

std::vector<int32_t> expected(const Layer& layer, const std::vector<int8_t>& q, int64_t rows) {
  std::vector<int32_t> acc;
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < layer.channels; ++n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < layer.k; ++k) sum += int64_t{q[m * layer.k + k]} * value(layer, n, k);
      acc.push_back(static_cast<int32_t>(sum));
    }
  }
  return acc;
}

std::vector<int8_t> random_rows(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int8_t> q(static_cast<size_t>(count));
  for (int8_t& value : q) value = static_cast<int8_t>(random() & 255u);
  return q;
}

constexpr int32_t kUntouched = -77;

std::vector<int32_t> by_few(CpuLevel level, const Layer& layer, const std::vector<int8_t>& q, int64_t rows) {
  std::vector<int32_t> acc(static_cast<size_t>(rows * layer.channels) + 16, kUntouched);
  multiply_few(level, layer.weights, 0, layer.channels, q.data(), rows, acc.data());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(acc[acc.size() - 16 + i], kUntouched);
  acc.resize(acc.size() - 16);
  return acc;
}

// In blocks of `block` rows, as callers with bounded scratch do.
std::vector<int32_t> by_many(CpuLevel level, const Layer& layer, const std::vector<int8_t>& q, int64_t rows,
                             int64_t block) {
  std::vector<uint8_t> operand(static_cast<size_t>(operand_bytes(level, rows, layer.k)));
  std::vector<int32_t> sums(static_cast<size_t>(rows)), acc(static_cast<size_t>(rows * layer.channels));
  for (int64_t m = 0; m < rows; m += block)
    arrange_rows(level, q.data() + m * layer.k, std::min(block, rows - m), layer.k,
                 operand.data() + m * operand_stride(level, layer.k), sums.data() + m);
  for (int64_t m = 0; m < rows; m += block) {
    const int64_t count = std::min(block, rows - m);
    for (int64_t n = 0; n < layer.channels; n += kManyChannels) {
      std::vector<int32_t> part(static_cast<size_t>((count + 3) / 4 * 4 * kManyChannels));
      multiply_many(level, layer.weights, n, operand.data() + m * operand_stride(level, layer.k),
                    sums.data() + m, count, part.data());
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t c = 0; c < kManyChannels; ++c)
          acc[(m + r) * layer.channels + n + c] = part[r * kManyChannels + c];
      }
    }
  }
  return acc;
}

TEST(W4a8Product, EveryLevelGivesTheExactSumsOfFewRows) {
  uint32_t seed = 1;
  for (const auto& [channels, k] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 32}, {64, 64}, {96, 192}, {64, 128}, {128, 384}, {32, 4224}}) {
    for (const bool grouped : {false, true}) {
      if (grouped && k % kGroup != 0) continue;
      const Layer layer = random_layer(channels, k, grouped, ++seed);
      for (int64_t rows = 1; rows <= kFewRows; ++rows) {
        const std::vector<int8_t> q = random_rows(rows * k, ++seed);
        const std::vector<int32_t> sums = expected(layer, q, rows);
        for (const CpuLevel level : levels()) {
          EXPECT_EQ(by_few(level, layer, q, rows), sums) << name(level) << " channels " << channels << " k "
                                                         << k << " rows " << rows << " grouped " << grouped;
        }
      }
    }
  }
}

TEST(W4a8Product, EveryLevelGivesTheExactSumsOfManyRows) {
  uint32_t seed = 100;
  // 2048 inputs are expanded at once.
  for (const auto& [channels, k] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 32}, {64, 64}, {96, 192}, {64, 128}, {32, 2048}, {32, 4224}}) {
    for (const bool grouped : {false, true}) {
      if (grouped && k % kGroup != 0) continue;
      const Layer layer = random_layer(channels, k, grouped, ++seed);
      for (const int64_t rows : {1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 23, 24, 25, 61}) {
        const std::vector<int8_t> q = random_rows(rows * k, ++seed);
        const std::vector<int32_t> sums = expected(layer, q, rows);
        for (const CpuLevel level : levels()) {
          for (const int64_t block : {12, 24, 384}) {
            EXPECT_EQ(by_many(level, layer, q, rows, block), sums)
                << name(level) << " channels " << channels << " k " << k << " rows " << rows << " grouped "
                << grouped;
          }
        }
      }
    }
  }
}

TEST(W4a8Product, AnyPartOfTheChannels) {
  const Layer layer = random_layer(96, 256, true, 7);
  const std::vector<int8_t> q = random_rows(3 * layer.k, 8);
  const std::vector<int32_t> all = expected(layer, q, 3);
  for (const CpuLevel level : levels()) {
    for (const auto& [first, count] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {16, 32}, {48, 48}, {80, 16}}) {
      std::vector<int32_t> acc(static_cast<size_t>(3 * count));
      multiply_few(level, layer.weights, first, count, q.data(), 3, acc.data());
      for (int64_t m = 0; m < 3; ++m) {
        for (int64_t n = 0; n < count; ++n) {
          EXPECT_EQ(acc[m * count + n], all[m * layer.channels + first + n]) << name(level) << " " << first;
        }
      }
    }
  }
}

TEST(W4a8Product, ExtremesOfTheLongestRowDoNotSaturate) {
  const int64_t k = kMaxInFeatures / kGroup * kGroup;
  for (const int code : {-8, 7}) {
    Layer layer;
    layer.channels = 32;
    layer.k = k;
    layer.codes.assign(static_cast<size_t>(32 * k), static_cast<int8_t>(code));
    layer.ratios.assign(static_cast<size_t>(k / kGroup * 32), 60000.0f);  // clamped to -128 and 127
    pack(layer);
    for (const int activation : {-128, 127}) {
      const std::vector<int8_t> q(static_cast<size_t>(k), static_cast<int8_t>(activation));
      const int64_t sum = int64_t{activation} * (code < 0 ? -128 : 127) * k;
      for (const CpuLevel level : levels()) {
        EXPECT_EQ(by_few(level, layer, q, 1), std::vector<int32_t>(32, static_cast<int32_t>(sum)))
            << name(level);
        EXPECT_EQ(by_many(level, layer, q, 1, 384), std::vector<int32_t>(32, static_cast<int32_t>(sum)))
            << name(level);
      }
    }
  }
}

// Inputs that are 1 once show the weights themselves: of every finite f16, with every code.
TEST(W4a8Product, EveryRatioAndCodeGivesItsInteger) {
  constexpr int64_t kChannels = 1024;
  for (int64_t begin = 0; begin < 65536; begin += kChannels) {
    Layer layer;
    layer.channels = kChannels;
    layer.k = kGroup;
    layer.codes.assign(static_cast<size_t>(kChannels * kGroup), 0);
    for (int64_t n = 0; n < kChannels; ++n) {
      for (int code = -8; code < 8; ++code) layer.codes[n * kGroup + code + 8] = static_cast<int8_t>(code);
      const float ratio = f16_to_f32(static_cast<uint16_t>(begin + n));
      layer.ratios.push_back(std::isfinite(ratio) ? ratio : 1.0f);
    }
    pack(layer);
    for (int code = -8; code < 8; ++code) {
      std::vector<int8_t> q(kGroup, 0);
      q[code + 8] = 1;
      const std::vector<int32_t> sums = expected(layer, q, 1);
      for (const CpuLevel level : levels()) {
        if (level == CpuLevel::reference && begin % 8192 != 0) continue;  // slow
        EXPECT_EQ(by_few(level, layer, q, 1), sums) << name(level) << " code " << code << " from " << begin;
      }
    }
  }
}

TEST(W4a8Product, RatiosAreTakenOnlyWhereTheyGiveTheSameIntegers) {
  std::vector<uint16_t> packed(32);
  const auto taken = [&](float ratio) {
    return pack_ratios(std::vector<float>(32, ratio).data(), 32, kGroup, packed.data());
  };
  EXPECT_TRUE(taken(1e6f));  // beyond f16, but clamped in both
  EXPECT_EQ(f16_to_f32(packed[0]), 65504.0f);
  EXPECT_TRUE(taken(-3e38f));
  EXPECT_TRUE(taken(1e-20f));  // zero in f16
  EXPECT_TRUE(taken(0.30001f));
  // 7 · 0.5 = 3.5 rounds to 4, 7 times a little less to 3; f16 has nothing between.
  EXPECT_FALSE(taken(std::nextafter(0.5f, 0.0f)));
}

}  // namespace
}  // namespace gramian::w4a8
