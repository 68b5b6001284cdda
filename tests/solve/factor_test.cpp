#include "solve/factor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "solve/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// U of Uᵀ U = A⁻¹ along the textbook route in float64: Cholesky, inverse, Cholesky.
at::Tensor textbook(const at::Tensor& damped) {
  const at::Tensor inverse = tensor::cholesky_inverse(*tensor::cholesky(damped.to(at::kDouble)));
  return tensor::cholesky(inverse)->t().contiguous();
}

at::Tensor damped(const at::Tensor& h, double lambda) {
  at::Tensor result = h.clone();
  result.diagonal().add_(lambda);
  return result;
}

// Largest difference relative to the row's diagonal entry.
double distance(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor e = expected.to(at::kDouble);
  return found.to(at::kDouble).sub(e).abs().div(e.diagonal().abs().unsqueeze(1)).max().item<double>();
}

at::Tensor with_diagonal(const at::Tensor& diagonal) {
  at::Tensor result = tensor::zeros({diagonal.size(0), diagonal.size(0)}, at::kFloat);
  result.diagonal().copy_(diagonal);
  return result;
}

TEST(Factor, MatchesTheTextbookRouteInFloat64) {
  // Around one and several tiles of the blocked factorization.
  for (const int64_t columns : {1, 2, 7, 128, 255, 256, 257, 512, 600}) {
    const at::Tensor h = solve_test::hessian(columns, 2 * columns + 5, 1);
    const at::Tensor before = h.clone();
    const Factor factor = factorize(h, 0.01, 0.001);
    ASSERT_TRUE(factor.ok());
    EXPECT_EQ(factor.attempts, 1);
    EXPECT_NEAR(factor.damp / (0.01 * h.diagonal().mean().item<double>()), 1.0, 1e-6);
    EXPECT_LT(distance(factor.upper, textbook(damped(h, factor.damp))), 1e-4) << columns;
    EXPECT_EQ(factor.upper.tril(-1).abs().max().item<float>(), 0.0f);
    EXPECT_GT(factor.upper.diagonal().min().item<float>(), 0.0f);
    EXPECT_TRUE(h.equal(before)) << "the caller's matrix";
  }
}

TEST(Factor, DiagonalMatrixInClosedForm) {
  const at::Tensor diagonal = tensor::arange(300, at::kFloat).add(1);
  const Factor factor = factorize(with_diagonal(diagonal), 0, 0);
  ASSERT_TRUE(factor.ok());
  EXPECT_EQ(factor.damp, 0);
  EXPECT_TRUE(factor.upper.sub(with_diagonal(diagonal.sqrt().reciprocal())).abs().max().item<float>() <
              1e-7f);
}

TEST(Factor, DeadColumnsGetOneBeforeTheMeanIsTaken) {
  at::Tensor h = solve_test::hessian(64, 200, 2);
  for (const int64_t column : {0, 31, 63}) {
    h.select(0, column).zero_();
    h.select(1, column).zero_();
  }
  const Factor factor = factorize(h, 0.1, 0.01);
  ASSERT_TRUE(factor.ok());
  EXPECT_EQ(factor.dead.sum().item<int64_t>(), 3);
  EXPECT_TRUE(factor.dead.select(0, 31).item<bool>());
  EXPECT_FALSE(factor.dead.select(0, 30).item<bool>());
  const double mean = (h.diagonal().to(at::kDouble).sum().item<double>() + 3) / 64;
  EXPECT_NEAR(factor.damp / (0.1 * mean), 1.0, 1e-6);
  EXPECT_NEAR(factor.upper.select(0, 31).select(0, 31).item<float>(), 1 / std::sqrt(1 + factor.damp), 1e-6);
  EXPECT_EQ(factor.upper.select(0, 31).abs().sum().item<float>(),
            factor.upper.select(0, 31).select(0, 31).item<float>());
}

// 1, 2, 3 and 100 beside two dead columns: mean 26.5; of an even number of values the median is the lower one.
TEST(Factor, SpreadOfTheDiagonalLeavesDeadColumnsOut) {
  const at::Tensor diagonal = tensor::zeros({6}, at::kFloat);
  for (const auto& [column, value] : {std::pair{1, 100.0}, {2, 1.0}, {3, 3.0}, {5, 2.0}})
    diagonal.select(0, column).fill_(value);
  EXPECT_DOUBLE_EQ(factorize(with_diagonal(diagonal), 0.01, 0).diagonal_spread, 26.5 / 2);
  EXPECT_EQ(factorize(tensor::zeros({3, 3}, at::kFloat), 0.01, 0).diagonal_spread, 1);
}

TEST(Factor, BytesDoNotDependOnThreads) {
  const at::Tensor h = solve_test::hessian(700, 300, 6);
  const Factor one = factorize(h, 0.01, 0.001);
  ASSERT_TRUE(one.ok());
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(factorize(h, 0.01, 0.001, &pool).upper.equal(one.upper)) << threads;
  }
}

// The result, and a block of packed rows beside it.
TEST(Factor, BytesNeeded) {
  EXPECT_GE(factor_bytes(4096), 4 * 4096 * 4096);
  EXPECT_LE(factor_bytes(4096), 4 * 4096 * 4096 * 11 / 10);
}

TEST(Factor, AnAllZeroMatrixIsTheIdentity) {
  const Factor factor = factorize(tensor::zeros({10, 10}, at::kFloat), 0.005, 0.001);
  ASSERT_TRUE(factor.ok());
  EXPECT_EQ(factor.dead.sum().item<int64_t>(), 10);
  EXPECT_NEAR(factor.damp, 0.005, 1e-9);
}

// Four rows stand behind 96 columns, so without damping nothing factors; a large enough λ must be found and
// reported.
TEST(Factor, RankDeficientMatrixClimbsTheLadder) {
  const at::Tensor h = solve_test::hessian(96, 4, 3);
  ASSERT_FALSE(factorize(h, 1e-12, 0).attempts == 1);
  const Factor factor = factorize(h, 1e-12, 1e-9);
  ASSERT_TRUE(factor.ok());
  EXPECT_GT(factor.attempts, 2);
  EXPECT_GT(factor.damp, 0);
  EXPECT_TRUE(factor.upper.isfinite().all().item<bool>());
}

// The smallest eigenvalue of [[1, x], [x, 1]] is 1 - x: the first candidate above x - 1 must be found, as by
// trying all.
TEST(Factor, BisectionFindsTheFirstCandidateThatFactors) {
  for (const double offset : {1.103, 1.257, 1.494, 1.836, 1.943}) {
    at::Tensor h = tensor::full({2, 2}, offset, at::kFloat);
    h.diagonal().fill_(1);
    const double damp = 0.05, step = 0.01;
    double expected = damp;
    while (!tensor::cholesky(damped(h, static_cast<float>(expected)))) expected += step;
    const Factor factor = factorize(h, damp, step);
    ASSERT_TRUE(factor.ok());
    EXPECT_NEAR(factor.damp, expected, 1e-6) << offset;
    EXPECT_LE(factor.attempts, 10) << "a walk, not a bisection";
  }
}

// No λ below the mean helps here; raising the diagonal to its floor does.
TEST(Factor, NegativeDiagonalIsLiftedToTheFloor) {
  const at::Tensor diagonal = tensor::full({40}, 1.0, at::kFloat);
  diagonal.select(0, 7).fill_(-50.0);
  const Factor factor = factorize(with_diagonal(diagonal), 0.05, 0.01);
  ASSERT_TRUE(factor.ok());
  EXPECT_GT(factor.attempts, 2);
}

TEST(Factor, HopelessMatrixIsReportedNotThrown) {
  at::Tensor h = tensor::full({3, 3}, 1e6, at::kFloat);
  h.diagonal().fill_(1);
  const Factor factor = factorize(h, 0.05, 0.01);
  EXPECT_FALSE(factor.ok());
  EXPECT_FALSE(factor.upper.defined());
  EXPECT_GT(factor.attempts, 7);
  EXPECT_EQ(factor.damp, 0);
}

TEST(Factor, NonFiniteEntriesAndBadOptionsAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor h = solve_test::hessian(16, 40, 4);
    h.select(0, 3).select(0, 9).fill_(bad);
    try {
      factorize(h, 0.01, 0.001);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numerical);
    }
  }
  const at::Tensor h = solve_test::hessian(4, 40, 5);
  EXPECT_THROW(factorize(h, 1.0, 0.001), Error);
  EXPECT_THROW(factorize(h, -0.1, 0.001), Error);
  EXPECT_THROW(factorize(h, std::nan(""), 0.001), Error);
  EXPECT_THROW(factorize(h, 0.1, -1), Error);
  EXPECT_THROW(factorize(tensor::zeros({3, 4}, at::kFloat), 0.01, 0.001), Error);
}

}  // namespace
}  // namespace gramian
