#include "kernels/solve/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gramian {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> gaussian(int64_t count, uint32_t seed, float sigma = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

float scale_of(const std::vector<float>& x, const GridRule& rule, CpuLevel level = detected_cpu_level()) {
  float scale = 0;
  GridScaler(rule, level)
      .scales(x.data(), static_cast<int64_t>(x.size()), 1, static_cast<int64_t>(x.size()), &scale, 1);
  return scale;
}

TEST(Grid, ScaleFromTheLargestMagnitude) {
  const std::vector<float> mixed = {0.3f, -1.1f, 0.7f};
  const std::vector<float> positive = {0.3f, 1.1f, 0.7f};
  const float full = 2 * 1.1f / 15, half = 1.1f / 15, row = 1.1f / 7;
  for (const auto* x : {&mixed, &positive}) {
    EXPECT_EQ(scale_of(*x, {}), full);
    EXPECT_EQ(scale_of(*x, {.narrow = true}), row);
    EXPECT_EQ(scale_of(*x, {.narrow = true, .one_sided = true}), row);
  }
  EXPECT_EQ(scale_of(mixed, {.one_sided = true}), full);
  EXPECT_EQ(scale_of(positive, {.one_sided = true}), half);
  EXPECT_EQ(scale_of(mixed, {.bits = 8, .narrow = true}), 1.1f / 127);
}

TEST(Grid, AllZeroRowsGetAFiniteScaleAndAreCounted) {
  for (const double mse : {0.0, 2.4}) {
    for (const bool one_sided : {false, true}) {
      const std::vector<float> x = {0, -0.0f, 0, 1, 2, 3, 0, 0, 0};
      float scale[3];
      EXPECT_EQ(GridScaler({.one_sided = one_sided, .mse = mse}, detected_cpu_level())
                    .scales(x.data(), 3, 3, 3, scale, 1),
                2);
      EXPECT_EQ(scale[0], 2.0f / 15);
      EXPECT_EQ(scale[2], 2.0f / 15);
      EXPECT_EQ(scale_of({0, 0}, {.narrow = true, .one_sided = one_sided, .mse = mse}), 1.0f / 7);
    }
  }
}

TEST(Grid, CodesRoundHalfToEvenAndClamp) {
  const std::vector<float> x = {0.5f, 1.5f, -0.5f, -2.5f, 6.5f, 7.5f, -7.5f, -8.5f, 1e30f, -1e30f, 0.0f};
  std::vector<int8_t> codes(x.size());
  quantize(x.data(), static_cast<int64_t>(x.size()), 1.0f, 0, {}, codes.data());
  EXPECT_EQ(codes, (std::vector<int8_t>{0, 2, 0, -2, 6, 7, -8, -8, 7, -8, 0}));
  quantize(x.data(), static_cast<int64_t>(x.size()), 1.0f, 0, {.narrow = true}, codes.data());
  EXPECT_EQ(codes, (std::vector<int8_t>{0, 2, 0, -2, 6, 7, -7, -7, 7, -7, 0}));
}

TEST(Grid, DivisionIsTrueDivision) {
  const std::vector<float> x = gaussian(4096, 5);
  std::vector<int8_t> codes(x.size());
  const float scale = 0.37f;
  quantize(x.data(), static_cast<int64_t>(x.size()), scale, 0, {}, codes.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(codes[i], static_cast<int8_t>(std::fmin(std::fmax(std::nearbyint(x[i] / scale), -8.0f), 7.0f)));
  }
}

TEST(Grid, PowerTableFollowsPow) {
  for (const double p : {1.0, 1.5, 2.0, 2.4, 3.0, 4.5, 6.0}) {
    const PowerTable table = PowerTable::make(p);
    EXPECT_EQ(table(0.0f), 0.0f);
    for (float x = std::ldexp(1.0f, -29); x < 3.99f; x *= 1.0137f) {
      const double expected = std::pow(static_cast<double>(x), p);
      if (expected < std::numeric_limits<float>::min()) continue;
      EXPECT_NEAR(table(x) / expected, 1.0, p <= 4 ? 1e-6 : 2e-6) << "x " << x << " p " << p;
    }
  }
}

// Sums of fp32 terms, each good to a few 1e-7, in an order of their own: 3e-6 covers rows of a few hundred. A
// code that the reciprocal moves at a tie changes its term by the last bit only.
TEST(Grid, SearchErrorsFollowTheReference) {
  for (const bool narrow : {false, true}) {
    for (const bool one_sided : {false, true}) {
      for (const double p : {1.0, 2.0, 2.4, 3.7, 6.0, 0.5, 8.0}) {
        for (const int64_t columns : {1, 2, 31, 32, 33, 127, 128, 500}) {
          std::vector<float> x = gaussian(columns, static_cast<uint32_t>(columns), 0.02f);
          if (columns % 2 == 1) {
            for (float& value : x) value = std::fabs(value);
          }
          const GridRule rule = {.narrow = narrow, .one_sided = one_sided, .mse = p};
          double exact[kGridCandidates];
          GridScaler(rule, CpuLevel::reference).errors_reference(x.data(), columns, exact);
          float first[kGridCandidates];
          const int winner = GridScaler(rule, CpuLevel::reference).errors(x.data(), columns, first);
          for (int i = 0; i < kGridCandidates; ++i) {
            // The error of a single weight can be all rounding (code·scale meets x): measured against the
            // weight.
            const double floor = 1e-12 * std::pow(std::fabs(x[0]), p) * static_cast<double>(columns);
            EXPECT_NEAR(first[i], exact[i], 3e-6 * exact[i] + floor)
                << "candidate " << i << " p " << p << " K " << columns;
            EXPECT_LE(exact[winner], exact[i] * (1 + 1e-5) + floor);
          }
          for (int level = 1; level <= static_cast<int>(detected_cpu_level()); ++level) {
            float errors[kGridCandidates];
            EXPECT_EQ(GridScaler(rule, static_cast<CpuLevel>(level)).errors(x.data(), columns, errors),
                      winner);
            for (int i = 0; i < kGridCandidates; ++i)
              EXPECT_EQ(errors[i], first[i]) << name(static_cast<CpuLevel>(level));
          }
        }
      }
    }
  }
}

// Giving up early must not change the choice: rows of many shapes, each against the search without a limit.
TEST(Grid, EarlyStopKeepsTheWinner) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t columns = 1 + random() % 400;
    std::vector<float> x = gaussian(columns, random());
    if (trial % 3 == 0) x[random() % columns] *= 20;
    if (trial % 5 == 0) {
      for (float& value : x) value = std::round(value * 2) / 2;
    }
    const GridRule rule = {.narrow = trial % 2 == 1, .one_sided = trial % 7 == 0, .mse = 2.4};
    if (*std::max_element(x.begin(), x.end()) == 0 && *std::min_element(x.begin(), x.end()) == 0) continue;
    for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
      const GridScaler scaler(rule, static_cast<CpuLevel>(level));
      float errors[kGridCandidates];
      const int winner = scaler.errors(x.data(), columns, errors);
      for (int i = 0; i < winner; ++i) EXPECT_GT(errors[i], errors[winner]);
      const float largest =
          std::max(*std::max_element(x.begin(), x.end()), -*std::min_element(x.begin(), x.end()));
      const bool half = rule.one_sided && *std::min_element(x.begin(), x.end()) >= 0;
      const float hi = static_cast<float>(1.0 - winner / 100.0) * largest;
      const float expected = rule.narrow ? hi / 7 : (hi + (half ? 0 : hi)) / 15;
      EXPECT_EQ(scale_of(x, rule, static_cast<CpuLevel>(level)), expected) << "trial " << trial;
    }
  }
}

TEST(Grid, MagnitudesFarFromOneAreSearchedLikeAnyOther) {
  const std::vector<float> x = gaussian(128, 9);
  const float plain = scale_of(x, {.mse = 2.4});
  for (const int exponent : {-100, -60, 60, 120}) {
    std::vector<float> scaled = x;
    for (float& value : scaled) value = std::ldexp(value, exponent);
    EXPECT_EQ(scale_of(scaled, {.mse = 2.4}), std::ldexp(plain, exponent)) << exponent;
  }
  // The peer's sums overflow there, and it keeps the unshrunk range.
  std::vector<float> huge = x;
  for (float& value : huge) value = std::ldexp(value, 70);
  EXPECT_EQ(scale_of(huge, {.one_sided = true, .mse = 2.4}), scale_of(huge, {.mse = 0}));
}

TEST(Grid, SubnormalWeightsKeepAFiniteNonZeroScale) {
  const std::vector<float> x = {std::numeric_limits<float>::denorm_min(),
                                -3 * std::numeric_limits<float>::denorm_min()};
  for (const double mse : {0.0, 2.4}) {
    const float scale = scale_of(x, {.mse = mse});
    EXPECT_GT(scale, 0);
    EXPECT_LT(scale, kInfinity);
  }
}

float decoded(float x, float scale, int zero, const GridRule& rule) {
  int8_t code;
  quantize(&x, 1, scale, zero, rule, &code);
  return static_cast<float>(code - zero) * scale;
}

TEST(Grid, AsymmetricRangesReachBothEnds) {
  for (const int bits : {2, 3, 4, 8}) {
    const GridRule rule = {.bits = bits, .asymmetric = true};
    for (const auto& [lo, hi] : {std::pair(-1.0f, 3.0f), std::pair(0.0f, 2.0f), std::pair(-5.0f, -1.0f)}) {
      const std::vector<float> x = {lo, (lo + hi) / 2, hi};
      float scale = 0;
      int8_t zero = 99;
      GridScaler(rule, detected_cpu_level()).scales(x.data(), 3, 1, 3, &scale, 1, &zero);
      EXPECT_FLOAT_EQ(scale, (std::max(hi, 0.0f) - std::min(lo, 0.0f)) / static_cast<float>(rule.steps()));
      EXPECT_GE(zero, rule.code_min());
      EXPECT_LE(zero, rule.code_max());
      EXPECT_EQ(decoded(0, scale, zero, rule), 0);
      for (const float value : x) EXPECT_NEAR(decoded(value, scale, zero, rule), value, scale * 0.5001f);
    }
  }
  const std::vector<float> nothing = {0, 0};
  float scale = 0;
  int8_t zero = 99;
  GridScaler({.asymmetric = true}, detected_cpu_level()).scales(nothing.data(), 2, 1, 2, &scale, 1, &zero);
  EXPECT_EQ(scale, 2.0f / 15);
  EXPECT_EQ(zero, static_cast<int>(std::nearbyint(1 / (2.0f / 15))) - 8);  // in the middle
}

// The search is never worse than the full range, and with 2 bits either integer beside the zero is tried.
TEST(Grid, AsymmetricSearchFollowsTheReference) {
  for (const int bits : {2, 4}) {
    const GridRule rule = {.bits = bits, .asymmetric = true, .mse = 2.4};
    std::vector<float> x = gaussian(96, 77, 0.02f);
    for (float& value : x) value += 0.01f;
    const GridScaler plain(rule, CpuLevel::reference);
    EXPECT_EQ(plain.candidates(), bits == 2 ? 160 : 80);
    std::vector<double> exact(plain.candidates());
    plain.errors_reference(x.data(), 96, exact.data());
    std::vector<float> first(plain.candidates());
    const int winner = plain.errors(x.data(), 96, first.data());
    for (int i = 0; i < plain.candidates(); ++i) {
      EXPECT_NEAR(first[i], exact[i], 3e-6 * exact[i]);
      EXPECT_LE(exact[winner], exact[i] * (1 + 1e-5));
    }
    if (bits == 2) {
      EXPECT_NE(exact[0], exact[1]);
    }
    for (int level = 1; level <= static_cast<int>(detected_cpu_level()); ++level) {
      std::vector<float> errors(plain.candidates());
      EXPECT_EQ(GridScaler(rule, static_cast<CpuLevel>(level)).errors(x.data(), 96, errors.data()), winner);
      EXPECT_EQ(errors, first);
    }
  }
}

TEST(Grid, BadRulesAreRefused) {
  for (const GridRule& rule :
       {GridRule{.bits = 1}, GridRule{.bits = 9}, GridRule{.mse = -1}, GridRule{.mse = NAN},
        GridRule{.mse = kInfinity}, GridRule{.narrow = true, .asymmetric = true}}) {
    EXPECT_THROW(GridScaler(rule, CpuLevel::reference), Error);
  }
}

}  // namespace
}  // namespace gramian
