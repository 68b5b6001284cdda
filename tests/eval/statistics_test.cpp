#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gramian {
namespace {

TEST(StudentT, QuantilesOfTheTables) {
  const struct {
    double p, degrees, expected;
  } table[] = {{0.975, 1, 12.706205},  {0.975, 2, 4.302653},  {0.975, 3, 3.182446},   {0.975, 5, 2.570582},
               {0.975, 10, 2.228139},  {0.975, 30, 2.042272}, {0.975, 100, 1.983972}, {0.975, 1000, 1.962339},
               {0.975, 1e6, 1.959966}, {0.95, 4, 2.131847},   {0.995, 9, 3.249836},   {0.9995, 1, 636.619249},
               {0.75, 1, 1.0},         {0.5, 7, 0.0}};
  for (const auto& row : table) {
    EXPECT_NEAR(student_t_quantile(row.p, row.degrees), row.expected, 1e-6 * std::max(1.0, row.expected))
        << row.degrees;
    EXPECT_NEAR(student_t_quantile(1 - row.p, row.degrees), -row.expected,
                1e-6 * std::max(1.0, row.expected));
  }
}

TEST(MeanWithInterval, EqualWeightsByHand) {
  // Mean 4, variance (4 + 0 + 4 + 0) / 3 = 8/3, standard error sqrt(8/3/4).
  const Interval interval = mean_with_ci95({2, 4, 6, 4}, {1, 1, 1, 1});
  const double half = 3.182446 * std::sqrt(8.0 / 3 / 4);
  EXPECT_DOUBLE_EQ(interval.mean, 4);
  EXPECT_NEAR(interval.low, 4 - half, 1e-5);
  EXPECT_NEAR(interval.high, 4 + half, 1e-5);
  // Only the ratio of weights counts.
  EXPECT_NEAR(mean_with_ci95({2, 4, 6, 4}, {5, 5, 5, 5}).high, interval.high, 1e-12);
}

TEST(MeanWithInterval, WeightedByHand) {
  // Mean (1·1 + 3·5) / 4 = 4; squares (1·3)² + (3·1)² = 18, times 2/1; error sqrt(36) / 4.
  const Interval interval = mean_with_ci95({1, 5}, {1, 3});
  EXPECT_DOUBLE_EQ(interval.mean, 4);
  EXPECT_NEAR(interval.high - interval.mean, 12.706205 * 1.5, 1e-4);
  EXPECT_NEAR(interval.mean - interval.low, 12.706205 * 1.5, 1e-4);
}

TEST(MeanWithInterval, OneValueHasNone) {
  const Interval interval = mean_with_ci95({3.5}, {2});
  EXPECT_EQ(interval.mean, 3.5);
  EXPECT_TRUE(std::isnan(interval.low));
  EXPECT_TRUE(std::isnan(interval.high));
}

TEST(MeanWithInterval, EqualValuesHaveNoWidth) {
  const Interval interval = mean_with_ci95({0.5, 0.5, 0.5}, {1, 2, 3});
  EXPECT_DOUBLE_EQ(interval.low, 0.5);
  EXPECT_DOUBLE_EQ(interval.high, 0.5);
}

}  // namespace
}  // namespace gramian
