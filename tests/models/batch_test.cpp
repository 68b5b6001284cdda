#include "models/batch.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace gramian {
namespace {

RopeSpec rope() {
  RopeSpec spec;
  spec.rotary_dim = 4;
  return spec;
}

TEST(BatchContext, NeighboursOfOneLengthMakeARun) {
  const BatchContext context =
      make_batch_context({5, 5, 3, 5, 1, 1, 1}, {rope(), RopeSpec{.theta = 9, .rotary_dim = 2}});
  EXPECT_EQ(context.tokens, 21);
  const int64_t expected[4][3] = {{0, 2, 5}, {10, 1, 3}, {13, 1, 5}, {18, 3, 1}};
  ASSERT_EQ(context.runs.size(), 4u);
  ASSERT_EQ(context.rope.size(), 2u);
  ASSERT_EQ(context.rope[0].size(), 4u);
  ASSERT_EQ(context.rope[1].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(context.runs[i].begin, expected[i][0]);
    EXPECT_EQ(context.runs[i].rows, expected[i][1]);
    EXPECT_EQ(context.runs[i].length, expected[i][2]);
    EXPECT_EQ(context.rope[0][i].cos.sizes(), at::IntArrayRef({expected[i][2], 2}));
    EXPECT_EQ(context.rope[0][i].sin.sizes(), at::IntArrayRef({expected[i][2], 2}));
    EXPECT_EQ(context.rope[1][i].cos.sizes(), at::IntArrayRef({expected[i][2], 1}));
  }
}

TEST(BatchContext, RotaryTablesFollowTheRowsLength) {
  RopeSpec spec = rope();
  spec.type = "dynamic";
  spec.factor = 2;
  spec.max_positions = 4;
  const BatchContext context = make_batch_context({4, 8}, {spec});
  // Position 1 of the second frequency: the long row's base is stretched.
  EXPECT_GT(context.rope[0][0].sin[1][1].item<double>(), 1.2 * context.rope[0][1].sin[1][1].item<double>());
}

TEST(BatchContext, NoRowsAndEmptyRows) {
  EXPECT_EQ(make_batch_context({}, {rope()}).tokens, 0);
  EXPECT_THROW(make_batch_context({3, 0}, {rope()}), Error);
}

}  // namespace
}  // namespace gramian
