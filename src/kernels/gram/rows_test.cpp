#include "kernels/gram/rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/gram/test_rows.h"

namespace gramian::gram {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

class RowsTest : public testing::TestWithParam<int> {
 protected:
  const CpuLevel level_ = static_cast<CpuLevel>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Levels, RowsTest, testing::Range(0, static_cast<int>(detected_cpu_level()) + 1),
                         [](const auto& info) {
                           return std::string(name(static_cast<CpuLevel>(info.param)));
                         });

TEST_P(RowsTest, ColumnSquaresAreTheFloat64SumsInTokenOrder) {
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 2, 15, 16, 17, 31, 64, 65, 127, 896, 4099}) {
      for (const int64_t tokens : {0, 1, 2, 3, 17, 60}) {
        const TestRows x(type, tokens, columns,
                         {.padding = tokens % 4, .indexed = tokens % 2 == 1, .mean = 3});
        std::vector<double> sums(columns, 0.125), expected = sums;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t k = 0; k < columns; ++k) expected[k] += x.value(t, k) * x.value(t, k);
        }
        // Any division of tokens and columns gives the same bits.
        const int64_t middle = columns / 3;
        for (const Rows& part :
             {x.view.slice(0, tokens / 2), x.view.slice(tokens / 2, tokens - tokens / 2)}) {
          add_column_squares(level_, part, 0, middle, sums.data());
          add_column_squares(level_, part, middle, columns, sums.data());
        }
        ASSERT_EQ(sums, expected) << dtype_name(type) << " T " << tokens << " K " << columns;
      }
    }
  }
}

TEST_P(RowsTest, TheFirstNonFiniteTokenIsFound) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 15, 17, 64, 127}) {
      TestRows x(type, 20, columns, {.padding = 3});
      EXPECT_EQ(first_non_finite(level_, x.view), -1);
      x.set(7, 0, type == DType::f16 ? 65504.0f : 3.38e38f);  // largest magnitudes are finite
      EXPECT_EQ(first_non_finite(level_, x.view), -1);
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        x.set(19, 0, bad);
        x.set(12, columns - 1, bad);
        EXPECT_EQ(first_non_finite(level_, x.view), 12) << dtype_name(type) << " K " << columns;
        EXPECT_EQ(first_non_finite(level_, x.view.slice(13, 7)), 6);
        EXPECT_EQ(first_non_finite(level_, x.view.slice(13, 6)), -1);
        x.set(12, columns - 1, 1);
        x.set(19, 0, 1);
      }
    }
  }
}

TEST(Rows, SlicesOfIndexedRows) {
  const TestRows x(DType::bf16, 11, 5, {.padding = 1, .indexed = true});
  const Rows part = x.view.slice(4, 3);
  EXPECT_EQ(part.count, 3);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(bf16_to_f32(part.row<BF16>(t)[k]), x.value(t + 4, k));
  }
}

}  // namespace
}  // namespace gramian::gram
