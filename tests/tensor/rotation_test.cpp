#include "tensor/rotation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/ops.h"

namespace gramian::tensor {
namespace {

at::Tensor identity(int64_t n) {
  return arange(n, at::kLong).unsqueeze(1).eq(arange(n, at::kLong)).to(at::kDouble);
}

TEST(RotationTest, IsOrthogonalForAnySize) {
  for (const int64_t size : {1, 2, 7, 12, 64, 96, 128, 576, 640, 896}) {
    const Rotation rotation(size, 3);
    const at::Tensor matrix = rotation.columns(identity(size));
    EXPECT_LT(matrix.matmul(matrix.t()).sub(identity(size)).abs().max().item<double>(), 1e-12) << size;
    EXPECT_TRUE(rotation.rows(identity(size)).allclose(matrix.t(), 0, 1e-12)) << size;
  }
}

TEST(RotationTest, SpreadsOneEntryOverAll) {
  const Rotation rotation(640, 1);
  const at::Tensor one = identity(640).slice(0, 17, 18);
  EXPECT_LT(rotation.columns(one).abs().max().item<double>(), 2 / std::sqrt(640.0));
}

TEST(RotationTest, SeedsDiffer) {
  const at::Tensor x = arange(64, at::kDouble);
  EXPECT_TRUE(Rotation(64, 1).columns(x).equal(Rotation(64, 1).columns(x)));
  EXPECT_FALSE(Rotation(64, 1).columns(x).equal(Rotation(64, 2).columns(x)));
}

TEST(RotationTest, RowsOfAVectorAreABias) {
  const Rotation rotation(12, 5);
  const at::Tensor bias = arange(12, at::kDouble);
  EXPECT_TRUE(rotation.rows(bias).equal(rotation.columns(bias)));
}

}  // namespace
}  // namespace gramian::tensor
