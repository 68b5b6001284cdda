#include "models/linear.h"

#include <gtest/gtest.h>

#include "tensor/ops.h"

namespace gramian {
namespace {

TEST(DenseLinear, MultipliesByTheTransposedWeightAndAddsTheBias) {
  const at::Tensor weight = tensor::arange(6, at::kFloat).reshape({3, 2});  // [out, in]
  const at::Tensor bias = tensor::arange(3, at::kFloat).mul(100.0);
  const at::Tensor x = tensor::arange(4, at::kFloat).reshape({2, 2});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor y = DenseLinear(weight.to(type), bias.to(type)).forward(x.to(type));
    const at::Tensor bare = DenseLinear(weight.to(type), at::Tensor()).forward(x.to(type));
    EXPECT_EQ(y.scalar_type(), type);
    // Rows (0, 1) and (2, 3) by the weight's rows (0, 1), (2, 3), (4, 5).
    const double expected[2][3] = {{1, 3, 5}, {3, 13, 23}};
    for (int64_t m = 0; m < 2; ++m) {
      for (int64_t n = 0; n < 3; ++n) {
        EXPECT_EQ(bare[m][n].item<double>(), expected[m][n]);
        // 213 and 223 need 8 bits: exact in bf16 too.
        EXPECT_EQ(y[m][n].item<double>(), expected[m][n] + 100.0 * static_cast<double>(n));
      }
    }
  }
}

}  // namespace
}  // namespace gramian
