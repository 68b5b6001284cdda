#include "kernels/solve/block.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace gramian {
namespace {

struct Case {
  int64_t rows, columns, group_size, first_column;
  bool with_dead;
};

class SolveBlockTest : public testing::TestWithParam<Case> {};

// Every level gives the textbook loop's bits, in codes, errors and loss, and touches nothing beyond its rows.
TEST_P(SolveBlockTest, MatchesTheTextbookLoopBitForBit) {
  const auto [rows, columns, group_size, first_column, with_dead] = GetParam();
  const int64_t stride = rows + 3;
  std::mt19937 random(static_cast<uint32_t>(rows * 1000 + columns));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  std::vector<float> weights(columns * stride), upper(columns * kBlockColumns), scale(columns * stride);
  for (float& value : weights) value = normal(random);
  for (float& value : scale) value = 0.2f * uniform(random);
  const auto dead = std::make_unique<bool[]>(columns);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < j; ++i) upper[j * kBlockColumns + i] = 0.2f * normal(random);
    upper[j * kBlockColumns + j] = uniform(random);
    dead[j] = with_dead && j % 5 == 2;
  }
  std::vector<int8_t> expected_codes(columns * stride, 99);
  std::vector<float> expected_errors(columns * stride, 99.0f);
  SolveBlock block = {.rows = rows, .columns = columns, .stride = stride, .weights = weights.data(),
                      .upper_t = upper.data(), .scale = scale.data(), .first_column = first_column,
                      .group_size = group_size, .dead = with_dead ? dead.get() : nullptr,
                      .codes = expected_codes.data(), .errors = expected_errors.data()};
  const double expected_loss = solve_block_reference(block);
  EXPECT_GT(expected_loss, 0);
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    std::vector<int8_t> codes(columns * stride, 99);
    std::vector<float> errors(columns * stride, 99.0f);
    block.codes = codes.data();
    block.errors = errors.data();
    const double loss = solve_block(block, static_cast<CpuLevel>(level));
    EXPECT_EQ(loss, expected_loss) << name(static_cast<CpuLevel>(level));
    EXPECT_EQ(codes, expected_codes) << name(static_cast<CpuLevel>(level));
    EXPECT_EQ(errors, expected_errors) << name(static_cast<CpuLevel>(level));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SolveBlockTest,
                         testing::Values(Case{1, 1, 1, 0, false}, Case{1, 128, 128, 0, false}, Case{3, 2, 1000, 128, true},
                                         Case{15, 17, 4, 128, false}, Case{16, 127, 32, 256, true},
                                         Case{17, 128, 96, 128, true}, Case{33, 64, 128, 384, false},
                                         Case{63, 31, 7, 5, true}, Case{64, 128, 128, 128, true},
                                         Case{64, 128, 1 << 20, 0, false}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "rows" + std::to_string(info.param.rows) + "_columns" +
                                  std::to_string(info.param.columns) + "_group" + std::to_string(info.param.group_size);
                         });

// Two columns by hand: U = [[2, 1], [0, 4]], scale 1. w = (0.75, 0.25): q0 = 1, e0 = -0.125, w1 = 0.375, q1 = 0.
TEST(SolveBlock, SmallCaseByHand) {
  const float weights[] = {0.75f, 0.25f};
  float upper[2 * kBlockColumns] = {};
  upper[0] = 2.0f;
  upper[kBlockColumns] = 1.0f;
  upper[kBlockColumns + 1] = 4.0f;
  const float scale = 1.0f;
  int8_t codes[2];
  float errors[2];
  const double loss = solve_block({.rows = 1, .columns = 2, .stride = 1, .weights = weights, .upper_t = upper,
                                   .scale = &scale, .group_size = 2, .codes = codes, .errors = errors},
                                  detected_cpu_level());
  EXPECT_EQ(codes[0], 1);
  EXPECT_EQ(codes[1], 0);
  EXPECT_EQ(errors[0], -0.125f);
  EXPECT_EQ(errors[1], 0.09375f);
  EXPECT_FLOAT_EQ(static_cast<float>(loss), 0.0625f / 4 / 2 + 0.140625f / 16 / 2);
}

}  // namespace
}  // namespace gramian
