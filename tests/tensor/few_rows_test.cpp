#include "tensor/few_rows.h"

#include <gtest/gtest.h>

namespace gramian::tensor {
namespace {

at::Tensor wave(at::IntArrayRef shape, double step) {
  at::Tensor values = arange(shape[0] * shape[1], at::kDouble).mul(step).sin();
  return values.view(shape).to(at::kFloat);
}

TEST(FewRowsTest, IsTheProductForAnyNumberOfThreads) {
  ThreadPool pool(3);
  const at::Tensor x = wave({3, 70}, 0.37);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor matrix = wave({1030, 70}, 0.11).to(type);
    const at::Tensor alone = few_rows_product(x, matrix, {}, nullptr);
    EXPECT_TRUE(alone.allclose(x.matmul(matrix.to(at::kFloat).t()), 1e-5, 1e-5));
    EXPECT_TRUE(few_rows_product(x, matrix, {}, &pool).equal(alone));
  }
}

TEST(FewRowsTest, ScalesRowsOfCodes) {
  const at::Tensor x = wave({1, 70}, 0.37), codes = wave({9, 70}, 0.11).mul(127).to(at::kChar);
  const at::Tensor scales = wave({1, 9}, 0.3).view({9});
  const at::Tensor expected = x.matmul(codes.to(at::kFloat).mul(scales.unsqueeze(1)).t());
  EXPECT_TRUE(few_rows_product(x, codes, scales, nullptr).allclose(expected, 1e-5, 1e-4));
}

TEST(FewRowsTest, LeavesTheRestToOthers) {
  const at::Tensor matrix = wave({9, 70}, 0.11);
  EXPECT_FALSE(few_rows_product(wave({5, 70}, 0.1), matrix, {}, nullptr).defined());
  EXPECT_FALSE(few_rows_product(wave({0, 70}, 0.1), matrix, {}, nullptr).defined());
  EXPECT_FALSE(few_rows_product(wave({1, 70}, 0.1), matrix.to(at::kDouble), {}, nullptr).defined());
  EXPECT_FALSE(few_rows_product(wave({1, 70}, 0.1).to(at::kDouble), matrix, {}, nullptr).defined());
  EXPECT_FALSE(few_rows_product(wave({1, 9}, 0.1), matrix.t(), {}, nullptr).defined());
}

}  // namespace
}  // namespace gramian::tensor
