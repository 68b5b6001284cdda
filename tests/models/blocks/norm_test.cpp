// Norms against plain formulas, and where they round.
#include "models/blocks/norm.h"

#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;

TEST(Norm, DividesByTheRootMeanSquare) {
  const at::Tensor weight = random_normal({8}, 1);
  const at::Tensor x = random_normal({5, 8}, 2).mul(3);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor expected =
      wide.div(wide.square().mean(-1, true).add(0.1).sqrt()).mul(weight.to(at::kDouble));
  EXPECT_LT(max_difference(Norm{weight, {.eps = 0.1}}(x), expected), 1e-6);
  const at::Tensor half = Norm{weight, {.eps = 0.1}}(x.to(at::kBFloat16));
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  EXPECT_LT(max_difference(half, expected), 0.05);
}

// (1 + weight) meets the quotient in f32; rounding before that would give other bits.
TEST(Norm, OffsetWeightsAreRoundedOnce) {
  const at::Tensor weight = random_normal({64}, 1).mul(0.3);
  const at::Tensor x = random_normal({50, 64}, 2).mul(3).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor quotient = wide.mul(wide.square().mean(-1, true).add(0.1).rsqrt());
  const at::Tensor found = Norm{weight, {.kind = NormKind::rms_offset, .eps = 0.1}}(x);
  EXPECT_TRUE(found.equal(quotient.mul(weight.add(1)).to(at::kBFloat16)));
  EXPECT_FALSE(found.equal(quotient.to(at::kBFloat16).mul(weight.add(1).to(at::kBFloat16))));
}

TEST(Norm, WithoutAWeightItDoesNothing) {
  const at::Tensor x = random_normal({3, 8}, 2);
  EXPECT_TRUE(Norm{}(x).equal(x));
}

}  // namespace
}  // namespace gramian
