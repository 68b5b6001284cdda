#include "eval/generated_rows.h"

#include <gtest/gtest.h>

namespace gramian {
namespace {

// The generator's first integers of seed 1, stream 1 are -13064 36531 31579 -36646 -5262.
TEST(GeneratedRows, TheFirstValuesAreTheStatedOnes) {
  const double first[] = {-13064, 36531, 31579, -36646, -5262};
  const double scale[] = {0.25, 1, 4, 0.5, 2};
  const at::Tensor x = generated_rows({.stream = 1}, 1, 5);
  for (int j = 0; j < 5; ++j) {
    EXPECT_EQ(x.select(0, 0).select(0, j).item<float>(),
              (first[j] + first[(j + 1) % 5] / 2) / 32768 * scale[j]);
  }
}

TEST(GeneratedRows, RowsGoOnWhereTheLastEndedAndStreamsDiffer) {
  const at::Tensor all = generated_rows({.stream = 3}, 6, 8);
  EXPECT_TRUE(generated_rows({.stream = 3}, 4, 8).equal(all.slice(0, 0, 4)));
  EXPECT_FALSE(generated_rows({.stream = 4}, 6, 8).equal(all));
  EXPECT_FALSE(generated_rows({.stream = 3, .seed = 2}, 6, 8).equal(all));
  EXPECT_EQ(generated_rows({}, 0, 8).numel(), 0);
}

}  // namespace
}  // namespace gramian
