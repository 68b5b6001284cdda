#include "kernels/solve/block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace gramian {
namespace {

struct Case {
  int64_t rows, columns, trailing, group_size, first_column;
  bool with_dead;
  bool with_zero = false;
};

class SolveBlockTest : public testing::TestWithParam<Case> {};

// Every level gives the textbook loop's bits in codes, trailing weights and loss, and writes no code beyond
// its rows.
TEST_P(SolveBlockTest, MatchesTheTextbookLoopBitForBit) {
  const auto [rows, columns, trailing, group_size, first_column, with_dead, with_zero] = GetParam();
  std::mt19937 random(static_cast<uint32_t>(rows * 1000 + columns));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  const int64_t codes_stride = columns + 3, right_stride = trailing + 5;
  std::vector<float> weights((columns + trailing) * kBlockRows), diagonal(columns * kBlockColumns);
  std::vector<float> scale(columns * kBlockRows), right(columns * right_stride);
  for (int64_t i = 0; i < static_cast<int64_t>(weights.size()); ++i)
    weights[i] = i % kBlockRows < rows ? normal(random) : 0;
  for (float& value : scale) value = 0.2f * uniform(random);
  std::vector<float> zero(scale.size());
  for (float& value : zero) value = static_cast<float>(static_cast<int>(random() % 16) - 8);
  std::vector<int32_t> group(columns);
  for (int64_t j = 0; j < columns; ++j)
    group[j] = static_cast<int32_t>((first_column + j) / group_size - first_column / group_size);
  if (with_zero) std::shuffle(group.begin(), group.end(), random);
  for (float& value : right) value = 0.2f * normal(random);
  const auto dead = std::make_unique<bool[]>(columns);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < j; ++i) diagonal[j * kBlockColumns + i] = 0.2f * normal(random);
    diagonal[j * kBlockColumns + j] = uniform(random);
    dead[j] = with_dead && j % 5 == 2;
  }
  std::vector<float> expected_weights = weights;
  std::vector<int8_t> expected_codes(rows * codes_stride, 99);
  SolveBlock block = {.rows = rows,
                      .columns = columns,
                      .trailing = trailing,
                      .weights = expected_weights.data(),
                      .diagonal_t = diagonal.data(),
                      .right = right.data(),
                      .right_stride = right_stride,
                      .group = group.data(),
                      .scale = scale.data(),
                      .zero = with_zero ? zero.data() : nullptr,
                      .dead = with_dead ? dead.get() : nullptr,
                      .codes = expected_codes.data(),
                      .codes_stride = codes_stride};
  const double expected_loss = solve_block_reference(block);
  EXPECT_GT(expected_loss, 0);
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    std::vector<float> found_weights = weights;
    std::vector<int8_t> codes(rows * codes_stride, 99);
    block.weights = found_weights.data();
    block.codes = codes.data();
    const double loss = solve_block(block, static_cast<CpuLevel>(level));
    EXPECT_EQ(loss, expected_loss) << name(static_cast<CpuLevel>(level));
    EXPECT_EQ(codes, expected_codes) << name(static_cast<CpuLevel>(level));
    for (int64_t i = 0; i < static_cast<int64_t>(weights.size()); ++i) {
      if (i % kBlockRows < rows) {
        ASSERT_EQ(found_weights[i], expected_weights[i]) << name(static_cast<CpuLevel>(level)) << " at " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SolveBlockTest,
                         testing::Values(Case{1, 1, 0, 1, 0, false}, Case{1, 128, 1, 128, 0, false},
                                         Case{3, 2, 7, 1000, 128, true}, Case{15, 17, 8, 4, 128, false},
                                         Case{16, 127, 15, 32, 256, true}, Case{17, 128, 16, 96, 128, true},
                                         Case{33, 64, 17, 128, 384, false}, Case{63, 31, 100, 7, 5, true},
                                         Case{64, 128, 129, 128, 128, true},
                                         Case{64, 128, 256, 1 << 20, 0, false},
                                         Case{64, 128, 31, 16, 0, false, true},
                                         Case{19, 77, 3, 8, 0, true, true}),
                         [](const testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return "rows" + std::to_string(c.rows) + "_columns" + std::to_string(c.columns) +
                                  "_trailing" + std::to_string(c.trailing) + "_group" +
                                  std::to_string(c.group_size);
                         });

// Three columns by hand, the last one behind the block: U = [[2, 1, 8], [0, 4, 16]], scale 1.
// w = (0.75, 0.25, 5): q0 = 1, e0 = -1/8; w1 = 3/8, q1 = 0, e1 = 3/32; w2 = 5 - (-1 + 3/2) = 4.5.
TEST(SolveBlock, SmallCaseByHand) {
  std::vector<float> weights(3 * kBlockRows), scale(kBlockRows, 1.0f), diagonal(2 * kBlockColumns);
  weights[0] = 0.75f;
  weights[kBlockRows] = 0.25f;
  weights[2 * kBlockRows] = 5.0f;
  diagonal[0] = 2.0f;
  diagonal[kBlockColumns] = 1.0f;
  diagonal[kBlockColumns + 1] = 4.0f;
  const float right[] = {8.0f, 16.0f};
  const int32_t group[] = {0, 0};
  int8_t codes[2];
  const double loss = solve_block({.rows = 1,
                                   .columns = 2,
                                   .trailing = 1,
                                   .weights = weights.data(),
                                   .diagonal_t = diagonal.data(),
                                   .right = right,
                                   .right_stride = 1,
                                   .group = group,
                                   .scale = scale.data(),
                                   .codes = codes,
                                   .codes_stride = 2},
                                  detected_cpu_level());
  EXPECT_EQ(codes[0], 1);
  EXPECT_EQ(codes[1], 0);
  EXPECT_EQ(weights[2 * kBlockRows], 4.5f);
  EXPECT_EQ(loss, 0.0625 / 4 / 2 + 0.140625 / 16 / 2);
}

}  // namespace
}  // namespace gramian
