// The local Hessian and the importance matrix: closed forms over lanes, merges and batches. What they share with the Hessian is
// tested with it, and that merges may run beside additions of any of them here.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"
#include "stats/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::make_rows;

// Token t is t + 1 in every column: Σ x_i x_j = 1 + 4 + ... for every pair, exact in every type.
at::Tensor ramp(int64_t tokens, int64_t columns) {
  return tensor::arange(tokens, at::kFloat).add(1).unsqueeze(1).repeat({1, columns});
}

TEST(LocalHessian, ClosedForm) {
  const int64_t columns = 20;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    LocalHessianAccumulator accumulator(columns, 2);
    EXPECT_TRUE(accumulator.merge().equal(tensor::zeros({2, 16, 16}, at::kFloat))) << "never called";
    accumulator.add(1, ramp(3, columns).to(type));
    accumulator.add(0, ramp(4, columns).reshape({2, 2, columns}).to(type));
    accumulator.add(0, tensor::zeros({0, columns}, type));
    EXPECT_EQ(accumulator.tokens(), 7);
    at::Tensor expected = tensor::full({2, 16, 16}, 14 + 30, at::kFloat);
    expected.select(0, 1).slice(0, 4).zero_();  // inputs 20 .. 31 do not exist
    expected.select(0, 1).slice(1, 4).zero_();
    const at::Tensor first = accumulator.merge();
    EXPECT_TRUE(first.equal(expected));
    accumulator.add(0, ramp(1, columns).to(type));
    EXPECT_TRUE(accumulator.merge().sub(first).equal(expected.ne(0).to(at::kFloat)));
    EXPECT_TRUE(first.equal(expected)) << "a sum handed out earlier must not change";
    EXPECT_EQ(accumulator.tokens(), 8);
  }
}

TEST(Imatrix, ClosedForm) {
  const int64_t columns = 5;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    ImatrixAccumulator accumulator(columns, 2);
    EXPECT_TRUE(accumulator.merge().equal(tensor::zeros({columns}, at::kDouble))) << "never called";
    accumulator.add(1, ramp(3, columns).to(type));
    accumulator.add(0, ramp(4, columns).reshape({2, 2, columns}).to(type));
    accumulator.add(1, tensor::zeros({0, columns}, type));
    const at::Tensor first = accumulator.merge(), expected = tensor::full({columns}, 14 + 30, at::kDouble);
    EXPECT_TRUE(first.equal(expected));
    accumulator.add(1, ramp(2, columns).to(type));
    EXPECT_TRUE(accumulator.merge().equal(tensor::full({columns}, 44 + 5, at::kDouble)));
    EXPECT_TRUE(first.equal(expected)) << "a sum handed out earlier must not change";
    EXPECT_EQ(accumulator.tokens(), 9);
  }
}

TEST(LocalHessian, IsTheDiagonalOfTheGramMatrix) {
  const int64_t columns = 70, tokens = 900;
  const at::Tensor x = make_rows(tokens, columns, 1);
  LocalHessianAccumulator accumulator(columns, 3);
  ImatrixAccumulator squares(columns, 3);
  for (int lane = 0; lane < 3; ++lane) {
    accumulator.add(lane, x.slice(0, 300 * lane, 300 * (lane + 1)));
    squares.add(lane, x.slice(0, 300 * lane, 300 * (lane + 1)));
  }
  const at::Tensor whole = testing_support::exact_hessian({x}, columns).mul(tokens / 2.0);
  const at::Tensor sums = accumulator.merge();
  for (int64_t b = 0; b < 5; ++b) {
    const int64_t end = std::min<int64_t>(16 * b + 16, columns), width = end - 16 * b;
    const at::Tensor block = whole.slice(0, 16 * b, end).slice(1, 16 * b, end);
    const at::Tensor found = sums.select(0, b).slice(0, 0, width).slice(1, 0, width);
    EXPECT_LT(testing_support::distance(found, block), 2e-6);
    EXPECT_TRUE(found.equal(found.t()));
  }
  EXPECT_LT(squares.merge().sub(whole.diagonal()).abs().div(whole.diagonal()).max().item<double>(), 1e-12);
}

// Threads that add side by side, each `repeats` times, to the lanes in turn.
std::vector<std::thread> start(int threads, int64_t repeats, int lanes, const std::function<void(int)>& add) {
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([=] {
      for (int64_t i = 0; i < repeats; ++i) add(static_cast<int>((t + i) % lanes));
    });
  }
  return workers;
}

// Integers are summed exactly, so neither lanes, threads nor the order of arrival may show.
TEST(Statistics, ConcurrentAddsLoseNothing) {
  const int64_t columns = 40, repeats = 20;
  const int threads = 4, lanes = 2;
  const at::Tensor rows = make_rows(8, columns, 2).round(), keep = tensor::arange(8, at::kLong).ne(3);
  LocalHessianAccumulator local(columns, lanes), local_once(columns, 1);
  ImatrixAccumulator imatrix(columns, lanes), imatrix_once(columns, 1);
  std::vector<std::thread> workers = start(threads, repeats, lanes, [&](int lane) {
    local.add(lane, rows, keep);
    imatrix.add(lane, rows, keep);
  });
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(local.tokens(), threads * repeats * 7);
  local_once.add(0, rows, keep);
  imatrix_once.add(0, rows, keep);
  EXPECT_TRUE(local.merge().equal(local_once.merge().mul(threads * repeats)));
  EXPECT_TRUE(imatrix.merge().equal(imatrix_once.merge().mul(threads * repeats)));
}

// Whatever a merge catches, the last one has everything.
TEST(Statistics, MergesBesideAddsLoseNothing) {
  const int64_t columns = 24, repeats = 30;
  const int threads = 3, lanes = 2;
  const at::Tensor rows = make_rows(8, columns, 4).round();
  HessianAccumulator hessian(columns, lanes), hessian_once(columns, 1);
  LocalHessianAccumulator local(columns, lanes), local_once(columns, 1);
  ImatrixAccumulator imatrix(columns, lanes), imatrix_once(columns, 1);
  std::vector<std::thread> workers = start(threads, repeats, lanes, [&](int lane) {
    hessian.add(lane, rows);
    local.add(lane, rows);
    imatrix.add(lane, rows);
  });
  for (int64_t seen = 0; seen < threads * repeats * 8; seen = hessian.tokens()) {
    const at::Tensor h = hessian.merge(), copy = h.clone();
    local.merge();
    imatrix.merge();
    EXPECT_TRUE(h.equal(copy)) << "a sum handed out does not change";
  }
  for (std::thread& worker : workers) worker.join();
  hessian_once.add(0, rows);
  local_once.add(0, rows);
  imatrix_once.add(0, rows);
  EXPECT_LT(testing_support::distance(hessian.merge(), hessian_once.merge()), 1e-5);
  EXPECT_TRUE(local.merge().equal(local_once.merge().mul(threads * repeats)));
  EXPECT_TRUE(imatrix.merge().equal(imatrix_once.merge().mul(threads * repeats)));
}

TEST(Statistics, BadRowsAreRefusedByAll) {
  at::Tensor rows = make_rows(4, 16, 3);
  LocalHessianAccumulator local(16, 1);
  ImatrixAccumulator imatrix(16, 1);
  EXPECT_THROW(local.add(0, make_rows(4, 15, 3)), Error);
  EXPECT_THROW(imatrix.add(0, tensor::zeros({2, 16}, at::kInt)), Error);
  EXPECT_THROW(imatrix.add(1, rows), Error);
  rows.select(0, 2).select(0, 5).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THROW(local.add(0, rows), Error);
  EXPECT_THROW(imatrix.add(0, rows), Error);
  EXPECT_EQ(local.tokens() + imatrix.tokens(), 0);
}

}  // namespace
}  // namespace gramian
