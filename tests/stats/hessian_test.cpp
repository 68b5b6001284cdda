#include "stats/hessian.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "stats/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::distance;
using testing_support::make_rows;

at::Tensor exact(const std::vector<at::Tensor>& batches, int64_t columns) {
  return testing_support::exact_hessian(batches, columns);
}

TEST(Hessian, MatchesFloat64OverLanesShapesAndTypes) {
  for (const int64_t columns : {1, 3, 128, 512, 513, 1100}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      if (columns > 513 && type != at::kFloat) continue;
      const std::vector<at::Tensor> batches = {make_rows(37, columns, 1).to(type),
                                               make_rows(24, columns, 2).reshape({2, 12, columns}).to(type),
                                               make_rows(1, columns, 3).reshape({columns}).to(type),
                                               make_rows(6, columns, 4).reshape({1, 2, 3, columns}).to(type)};
      HessianAccumulator accumulator(columns, 3);
      for (size_t i = 0; i < batches.size(); ++i) accumulator.add(static_cast<int>(i * 2 % 3), batches[i]);
      EXPECT_EQ(accumulator.tokens(), 37 + 24 + 1 + 6);
      const at::Tensor h = accumulator.merge();
      EXPECT_EQ(h.scalar_type(), at::kFloat);
      EXPECT_LT(distance(h, exact(batches, columns)), 2e-6) << columns;
      EXPECT_TRUE(h.equal(h.t()));
      EXPECT_EQ(accumulator.tokens(), 68);
    }
  }
}

TEST(Hessian, ClosedForm) {
  // Rows e_0, 2 e_1, 3 e_2: the sum is diag(1, 4, 9), n = 3.
  at::Tensor rows = tensor::zeros({3, 3}, at::kFloat);
  rows.diagonal().copy_(tensor::arange(3, at::kFloat).add(1));
  HessianAccumulator accumulator(3, 1);
  accumulator.add(0, rows);
  at::Tensor expected = tensor::zeros({3, 3}, at::kFloat);
  expected.diagonal().copy_(tensor::arange(3, at::kFloat).add(1).square().mul(2.0 / 3.0));
  EXPECT_TRUE(accumulator.merge().equal(expected));
}

TEST(Hessian, LongBatchesGoThroughChunks) {
  const int64_t columns = 40;
  const at::Tensor rows = make_rows(5000, columns, 5);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    HessianAccumulator accumulator(columns, 1);
    accumulator.add(0, rows.to(type));
    EXPECT_EQ(accumulator.tokens(), 5000);
    EXPECT_LT(distance(accumulator.merge(), exact({rows.to(type)}, columns)), 5e-6);
  }
}

TEST(Hessian, StridedRowsAreReadAsTheyAre) {
  const at::Tensor wide = make_rows(30, 24, 6);
  HessianAccumulator accumulator(12, 1);
  accumulator.add(0, wide.slice(1, 0, 24, 2));
  EXPECT_LT(distance(accumulator.merge(), exact({wide.slice(1, 0, 24, 2).contiguous()}, 12)), 2e-6);
}

TEST(Hessian, WithoutRowsItIsZero) {
  HessianAccumulator accumulator(5, 2);
  accumulator.add(0, tensor::zeros({0, 5}, at::kFloat));
  accumulator.add(1, tensor::zeros({3, 0, 5}, at::kBFloat16));
  EXPECT_EQ(accumulator.tokens(), 0);
  EXPECT_TRUE(accumulator.merge().equal(tensor::zeros({5, 5}, at::kFloat)));
  accumulator.add(0, make_rows(4, 5, 7));
  EXPECT_LT(distance(accumulator.merge(), exact({make_rows(4, 5, 7)}, 5)), 1e-6);
}

TEST(Hessian, RowsAddedAfterAMergeCountWithTheOthers) {
  const std::vector<at::Tensor> batches = {make_rows(20, 9, 8), make_rows(3, 9, 9), make_rows(50, 9, 10)};
  HessianAccumulator accumulator(9, 2);
  accumulator.add(0, batches[0]);
  const at::Tensor first = accumulator.merge();
  const at::Tensor copy = first.clone();
  EXPECT_TRUE(accumulator.merge().equal(first));
  accumulator.add(1, batches[1]);
  EXPECT_EQ(accumulator.tokens(), 23);
  accumulator.merge();
  accumulator.add(0, batches[2]);
  const at::Tensor all = accumulator.merge();
  EXPECT_LT(distance(all, exact(batches, 9)), 1e-6);
  EXPECT_TRUE(all.equal(all.t()));
  EXPECT_EQ(accumulator.tokens(), 73);
  EXPECT_TRUE(first.equal(copy)) << "an H handed out earlier must not change";
}

// Integers are summed exactly, so neither lanes, threads nor the order of arrival may show.
TEST(Hessian, ConcurrentAddsLoseNothing) {
  const int64_t columns = 33;
  const int lanes = 2, threads = 4, repeats = 25;
  const at::Tensor rows = make_rows(8, columns, 11).round();
  HessianAccumulator accumulator(columns, lanes);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (int i = 0; i < repeats; ++i) accumulator.add((t + i) % lanes, rows);
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(accumulator.tokens(), threads * repeats * 8);
  HessianAccumulator once(columns, 1);
  once.add(0, rows);
  EXPECT_LT(distance(accumulator.merge(), once.merge()), 1e-6);
}

TEST(Hessian, NonFiniteRowsAreRefusedAndLeaveNoTrace) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      at::Tensor rows = make_rows(3000, 6, 12).to(type);
      rows.select(0, 2500).select(0, 3).fill_(bad);
      rows.select(0, 2700).slice(0, 0, 2).fill_(bad);
      HessianAccumulator accumulator(6, 1);
      try {
        accumulator.add(0, rows);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::numerical);
        EXPECT_NE(std::string(error.what()).find("3 of 18000"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("row 2500"), std::string::npos) << error.what();
      }
      EXPECT_EQ(accumulator.tokens(), 0);
      EXPECT_EQ(accumulator.merge().abs().max().item<float>(), 0.0f);
    }
  }
}

// Their sum overflows fp32, their squares do too; the values themselves are finite and accepted.
TEST(Hessian, LargeFiniteRowsAreNotMistakenForInfinite) {
  HessianAccumulator accumulator(4, 1);
  EXPECT_NO_THROW(accumulator.add(0, tensor::full({8, 4}, 3e38, at::kFloat)));
}

TEST(Hessian, RowsOfAnotherWidthAreRefused) {
  HessianAccumulator accumulator(8, 1);
  EXPECT_THROW(accumulator.add(0, make_rows(4, 7, 13)), Error);
  EXPECT_THROW(accumulator.add(0, tensor::zeros({2, 8}, at::kInt)), Error);
  EXPECT_THROW(accumulator.add(0, tensor::full({}, 1.0, at::kFloat)), Error);
  EXPECT_THROW(accumulator.add(1, make_rows(4, 8, 13)), Error);
}

}  // namespace
}  // namespace gramian
