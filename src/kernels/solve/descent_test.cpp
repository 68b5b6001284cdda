#include "kernels/solve/descent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace gramian {
namespace {

struct Problem {
  std::vector<float> gradient, hessian, scale, least, most, ratio, channel, codes, step;
  std::vector<int32_t> group;
  DescentBlock block;
};

// Random weights around a random H = XᵀX; every fifth column is dead when `with_dead`.
Problem problem(int64_t columns, int64_t group_size, bool two_scales, bool with_dead) {
  std::mt19937 random(static_cast<uint32_t>(columns * 7 + group_size + two_scales));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  Problem p;
  const int64_t groups = (columns + group_size - 1) / group_size;
  std::vector<float> x(200 * columns);
  for (float& value : x) value = normal(random);
  p.hessian.assign(kBlockColumns * kBlockColumns, 0);
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      if (with_dead && (i % 5 == 2 || j % 5 == 2)) continue;
      for (int64_t t = 0; t < 200; ++t)
        p.hessian[i * kBlockColumns + j] += x[t * columns + i] * x[t * columns + j] / 100;
    }
  }
  for (int64_t i = 0; i < columns; ++i) p.group.push_back(static_cast<int32_t>(i / group_size));
  for (int64_t i = 0; i < groups * kBlockRows; ++i) {
    p.ratio.push_back(std::nearbyint(64 * 8 * uniform(random)) / 64);
    p.channel.push_back(0.01f);
    p.scale.push_back(two_scales ? p.ratio.back() * 0.01f : 0.1f * uniform(random));
    p.least.push_back(static_cast<float>(-8 + static_cast<int>(random() % 3)));
    p.most.push_back(static_cast<float>(7 - static_cast<int>(random() % 3)));
  }
  for (int64_t i = 0; i < columns * kBlockRows; ++i) {
    p.codes.push_back(static_cast<float>(static_cast<int>(random() % 11) - 5));
    p.gradient.push_back(normal(random));
  }
  p.step.assign(columns * kBlockRows, 99);
  p.block = {.columns = columns,
             .gradient = p.gradient.data(),
             .hessian = p.hessian.data(),
             .group = p.group.data(),
             .scale = p.scale.data(),
             .least = p.least.data(),
             .most = p.most.data(),
             .ratio = two_scales ? p.ratio.data() : nullptr,
             .channel = two_scales ? p.channel.data() : nullptr,
             .codes = p.codes.data(),
             .step = p.step.data()};
  return p;
}

class DescentTest : public testing::TestWithParam<std::tuple<int, int, bool, bool>> {};

TEST_P(DescentTest, EveryLevelGivesTheReferencesBits) {
  const auto [columns, group_size, two_scales, with_dead] = GetParam();
  Problem expected = problem(columns, group_size, two_scales, with_dead);
  const std::vector<float> before = expected.codes;
  const int64_t changed = descend_reference(expected.block);
  EXPECT_GT(changed, columns > 2 ? columns : 0);
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    Problem found = problem(columns, group_size, two_scales, with_dead);
    EXPECT_EQ(descend(found.block, static_cast<CpuLevel>(level)), changed);
    EXPECT_EQ(found.codes, expected.codes) << name(static_cast<CpuLevel>(level));
    EXPECT_EQ(found.step, expected.step) << name(static_cast<CpuLevel>(level));
  }
  for (int64_t i = 0; i < columns * kBlockRows; ++i) {
    const int64_t column = i / kBlockRows, at = expected.group[column] * kBlockRows + i % kBlockRows;
    if (with_dead && column % 5 == 2) {
      EXPECT_EQ(expected.codes[i], before[i]);
    } else {
      EXPECT_GE(expected.codes[i], expected.least[at]);
      EXPECT_LE(expected.codes[i], expected.most[at]);
    }
  }
}

// J changes by Σ_ij step_i step_j H_ij - 2 Σ_i step_i G_i, which no visit may raise where codes were inside their range.
TEST_P(DescentTest, NeverRaisesTheError) {
  const auto [columns, group_size, two_scales, with_dead] = GetParam();
  Problem p = problem(columns, group_size, two_scales, with_dead);
  ASSERT_GE(descend(p.block, detected_cpu_level()), 0);
  for (int64_t r = 0; r < kBlockRows; ++r) {
    double change = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const double step = p.step[i * kBlockRows + r];
      change -= 2 * step * p.gradient[i * kBlockRows + r];
      for (int64_t j = 0; j < columns; ++j)
        change += step * p.step[j * kBlockRows + r] * p.hessian[i * kBlockColumns + j];
    }
    EXPECT_LE(change, 1e-4) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DescentTest,
                         testing::Combine(testing::Values(1, 2, 37, 128), testing::Values(16, 128),
                                          testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace gramian
