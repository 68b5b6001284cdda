#include "solve/solvers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "solve/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using solve_test::hessian;
using solve_test::noise;
using solve_test::proxy;

double proxy_of(const QuantizedLinear& q, const at::Tensor& weight, const at::Tensor& h) {
  return proxy(weight, q.codes, q.scale, q.group_size, h);
}

// Per-row GPTQ in plain loops over float64, one block of columns at most, given scales: an independent
// formulation.
at::Tensor plain_codes(const at::Tensor& weight, const at::Tensor& upper, const at::Tensor& scale,
                       int64_t group_size, double lo) {
  at::Tensor w = weight.to(at::kDouble).clone();
  const at::Tensor u = upper.to(at::kDouble);
  const at::Tensor codes = tensor::zeros(weight.sizes(), at::kChar);
  for (int64_t j = 0; j < w.size(1); ++j) {
    const at::Tensor s = scale.select(1, j / group_size).to(at::kDouble);
    const at::Tensor code = w.select(1, j).div(s).round().clamp(lo, 7);
    codes.select(1, j).copy_(code);
    const at::Tensor error = w.select(1, j).sub(code.mul(s)).div(u.select(0, j).select(0, j));
    w.sub_(error.unsqueeze(1).mul(u.select(0, j).unsqueeze(0)));
  }
  return codes;
}

struct Shape {
  int64_t rows, columns, group_size;
};

TEST(Gptq, FollowsThePlainAlgorithm) {
  ThreadPool pool(2);
  for (const auto [rows, columns, group_size] :
       {Shape{5, 40, -1}, Shape{70, 128, 128}, Shape{33, 300, -1}, Shape{64, 256, 128}, Shape{9, 320, 32},
        Shape{130, 288, 96}}) {
    const at::Tensor weight = noise(rows, columns, 10);
    const at::Tensor h = hessian(columns, 3 * columns, 11);
    const Factor factor = factorize(h, 0.01, 0.001);
    SolveOptions options;
    options.grid.group_size = group_size;
    options.static_groups = true;  // fixed scales: the plain loop needs no block structure
    const QuantizedLinear q = solve_gptq(weight, factor, 100, options, pool);
    EXPECT_EQ(q.group_size, group_size == -1 ? columns : group_size);
    EXPECT_EQ(q.scale.size(1), columns / q.group_size);
    const at::Tensor expected =
        plain_codes(weight, factor.upper, q.scale, q.group_size, group_size == -1 ? -7 : -8);
    // float64 against float32: ties apart, the same codes. A flipped code passes its error on to later ones.
    EXPECT_LE(q.codes.ne(expected).sum().item<int64_t>(), rows * columns / 200) << rows << "x" << columns;
    EXPECT_EQ(q.damp, factor.damp);
    EXPECT_EQ(q.damp_attempts, 1);
    EXPECT_EQ(q.diagonal_spread, factor.diagonal_spread);
    EXPECT_TRUE(q.fallback.empty());
  }
}

TEST(Gptq, LossIsTheObjectiveItMinimizes) {
  // With one row per scale and no clipping to speak of, Σ (w-q)²/U_jj² is exactly tr(E (H+λI) Eᵀ).
  ThreadPool pool(1);
  const at::Tensor weight = noise(24, 96, 12);
  const at::Tensor h = hessian(96, 400, 13);
  const Factor factor = factorize(h, 0.01, 0.001);
  SolveOptions options;
  options.grid.group_size = -1;
  const QuantizedLinear q = solve_gptq(weight, factor, 400, options, pool);
  at::Tensor damped = h.clone();
  damped.diagonal().add_(factor.damp);
  EXPECT_NEAR(q.loss / (proxy_of(q, weight, damped) / 2 / 400), 1.0, 1e-4);
}

TEST(Gptq, BeatsPlainRounding) {
  ThreadPool pool(2);
  for (const int64_t group_size : {-1, 128}) {
    for (const double mse : {0.0, 2.4}) {
      const at::Tensor weight = noise(96, 384, 14);
      const at::Tensor h = hessian(384, 1000, 15);
      SolveOptions options;
      options.grid = {.group_size = group_size, .mse = mse};
      const QuantizedLinear gptq = solve_gptq(weight, factorize(h, 0.005, 0.001), 1000, options, pool);
      const QuantizedLinear rtn = solve_rtn(weight, options.grid, pool);
      EXPECT_LT(proxy_of(gptq, weight, h), 0.8 * proxy_of(rtn, weight, h)) << group_size << " " << mse;
      EXPECT_TRUE(std::isnan(rtn.loss));
      EXPECT_GT(gptq.loss, 0);
    }
  }
}

// A diagonal Hessian passes nothing on: the solver is plain rounding then, in every group.
TEST(Gptq, DiagonalHessianIsPlainRounding) {
  ThreadPool pool(2);
  const at::Tensor weight = noise(50, 256, 16);
  at::Tensor h = tensor::zeros({256, 256}, at::kFloat);
  h.diagonal().copy_(tensor::arange(256, at::kFloat).add(1));
  const Factor factor = factorize(h, 0.01, 0.001);
  for (const int64_t group_size : {-1, 128, 64}) {
    SolveOptions options;
    options.grid.group_size = group_size;
    const QuantizedLinear gptq = solve_gptq(weight, factor, 7, options, pool);
    const QuantizedLinear rtn = solve_rtn(weight, options.grid, pool);
    EXPECT_TRUE(gptq.codes.equal(rtn.codes));
    EXPECT_TRUE(gptq.scale.equal(rtn.scale));
  }
}

TEST(Gptq, ThreadsDoNotShowInTheBytes) {
  const at::Tensor weight = noise(333, 320, 17);
  const Factor factor = factorize(hessian(320, 900, 18), 0.005, 0.001);
  for (const int64_t group_size : {-1, 64}) {
    SolveOptions options;
    options.grid.group_size = group_size;
    ThreadPool one(1);
    const QuantizedLinear first = solve_gptq(weight, factor, 900, options, one);
    const QuantizedLinear first_rtn = solve_rtn(weight, options.grid, one);
    for (const int threads : {2, 3}) {
      ThreadPool pool(threads);
      const QuantizedLinear again = solve_gptq(weight, factor, 900, options, pool);
      EXPECT_TRUE(again.codes.equal(first.codes));
      EXPECT_TRUE(again.scale.equal(first.scale));
      EXPECT_EQ(again.loss, first.loss);
      EXPECT_TRUE(solve_rtn(weight, options.grid, pool).codes.equal(first_rtn.codes));
    }
  }
}

TEST(Gptq, RowsWithoutNegativesUseTheFullRange) {
  ThreadPool pool(1);
  const at::Tensor weight = noise(4, 128, 19).abs().add(0.1);
  const GridOptions plain = {.mse = 0};
  const QuantizedLinear ours = solve_rtn(weight, plain, pool);
  EXPECT_TRUE(ours.scale.squeeze(1).equal(weight.amax(1).mul(2).div(15)));
  const QuantizedLinear peer = solve_rtn(weight, {.mse = 0, .one_sided_range = true}, pool);
  EXPECT_TRUE(peer.scale.squeeze(1).equal(weight.amax(1).div(15)));
  const at::Tensor identity = tensor::zeros({128, 128}, at::kFloat).fill_diagonal_(1);
  EXPECT_LT(proxy_of(ours, weight, identity), 0.5 * proxy_of(peer, weight, identity));
}

TEST(Gptq, DeadColumnsKeepTheirRoundedWeights) {
  ThreadPool pool(2);
  const at::Tensor weight = noise(40, 256, 20);
  at::Tensor x = noise(500, 256, 21).add(noise(500, 1, 22));
  const std::vector<int64_t> dead = {0, 127, 128, 200};
  for (const int64_t column : dead) x.select(1, column).zero_();
  const at::Tensor h = x.t().matmul(x).mul(2.0 / 500);
  const Factor factor = factorize(h, 0.005, 0.001);
  for (const int64_t group_size : {-1, 128}) {
    SolveOptions options;
    options.grid.group_size = group_size;
    const QuantizedLinear q = solve_gptq(weight, factor, 500, options, pool);
    EXPECT_EQ(q.dead_columns, 4);
    for (const int64_t column : dead) {
      const at::Tensor expected = weight.select(1, column)
                                      .div(q.scale.select(1, column / q.group_size))
                                      .round()
                                      .clamp(group_size == -1 ? -7 : -8, 7);
      EXPECT_TRUE(q.codes.select(1, column).to(at::kFloat).equal(expected)) << column;
    }
    // Their rounding error costs nothing and must not be counted: other values there, the same loss.
    options.grid.mse = 0;
    at::Tensor first = weight.clone(), second = weight.clone();
    for (const int64_t column : dead) {
      first.select(1, column).clamp_(-0.3, 0.3);
      second.select(1, column).fill_(0.1);
    }
    EXPECT_EQ(solve_gptq(first, factor, 500, options, pool).loss,
              solve_gptq(second, factor, 500, options, pool).loss);
    options.clear_dead_columns = true;
    const QuantizedLinear cleared = solve_gptq(weight, factor, 500, options, pool);
    for (const int64_t column : dead)
      EXPECT_EQ(cleared.codes.select(1, column).abs().max().item<int8_t>(), 0);
  }
}

TEST(Gptq, ZeroRowsAreCountedAndStayZero) {
  ThreadPool pool(2);
  at::Tensor weight = noise(70, 256, 23);
  weight.select(0, 3).zero_();
  weight.select(0, 69).slice(0, 0, 128).zero_();
  weight.select(0, 5).slice(0, 128, 256).zero_();  // where the first group's errors go
  const Factor factor = factorize(hessian(256, 700, 24), 0.005, 0.001);
  for (const bool static_groups : {false, true}) {
    SolveOptions options;
    options.static_groups = static_groups;
    const QuantizedLinear q = solve_gptq(weight, factor, 700, options, pool);
    EXPECT_EQ(q.zero_groups, 4);
    EXPECT_EQ(q.codes.select(0, 3).abs().max().item<int8_t>(), 0);
    EXPECT_EQ(q.codes.select(0, 69).slice(0, 0, 128).abs().max().item<int8_t>(), 0);
    EXPECT_EQ(q.codes.select(0, 5).slice(0, 128, 256).abs().max().item<int8_t>(), 0);
    EXPECT_GT(q.codes.select(0, 5).slice(0, 0, 128).abs().max().item<int8_t>(), 0);
    EXPECT_EQ(q.scale.select(0, 3).select(0, 0).item<float>(), 2.0f / 15);
    EXPECT_EQ(q.scale.select(0, 5).select(0, 1).item<float>(), 2.0f / 15);
    options.fill_zero_groups = true;
    const QuantizedLinear filled = solve_gptq(weight, factor, 700, options, pool);
    EXPECT_EQ(filled.zero_groups, 4);
    EXPECT_EQ(filled.codes.select(0, 3).abs().max().item<int8_t>(), 0);
    const auto second_group = filled.codes.select(0, 5).slice(0, 128, 256).abs().max().item<int8_t>();
    EXPECT_TRUE(second_group > 0 || static_groups);
    options.grid.group_size = -1;
    EXPECT_EQ(solve_gptq(weight, factor, 700, options, pool).zero_groups, 1);
    EXPECT_EQ(solve_rtn(weight, options.grid, pool).zero_groups, 1);
  }
}

TEST(Gptq, ConfiguredGroupSizeDecidesTheFormulas) {
  ThreadPool pool(1);
  const at::Tensor weight = noise(16, 128, 25);
  const QuantizedLinear grouped = solve_rtn(weight, {.group_size = 128, .mse = 0}, pool);
  const QuantizedLinear row = solve_rtn(weight, {.group_size = -1, .mse = 0}, pool);
  EXPECT_EQ(grouped.group_size, 128);
  EXPECT_EQ(row.group_size, 128);
  EXPECT_TRUE(grouped.scale.squeeze(1).equal(weight.abs().amax(1).mul(2).div(15)));
  EXPECT_TRUE(row.scale.squeeze(1).equal(weight.abs().amax(1).div(7)));
  EXPECT_EQ(row.codes.min().item<int8_t>(), -7);
  EXPECT_EQ(grouped.codes.min().item<int8_t>(), -8);
}

TEST(Gptq, StaticGroupsOfWholeRowsChangeNothing) {
  ThreadPool pool(1);
  const at::Tensor weight = noise(16, 256, 28);
  const Factor factor = factorize(hessian(256, 500, 29), 0.005, 0.001);
  SolveOptions options{.grid = {.group_size = -1}};
  const QuantizedLinear plain = solve_gptq(weight, factor, 500, options, pool);
  options.static_groups = true;
  const QuantizedLinear fixed = solve_gptq(weight, factor, 500, options, pool);
  EXPECT_TRUE(fixed.codes.equal(plain.codes));
  EXPECT_TRUE(fixed.scale.equal(plain.scale));
}

TEST(Gptq, WeightTypesAndCallersMemory) {
  ThreadPool pool(1);
  const Factor factor = factorize(hessian(128, 300, 26), 0.005, 0.001);
  const at::Tensor rounded = noise(20, 128, 27).to(at::kBFloat16);
  const at::Tensor before = rounded.clone();
  const at::Tensor wide = rounded.to(at::kFloat);
  const at::Tensor column_major = wide.t().contiguous().t();
  const at::Tensor kept = column_major.clone();
  const QuantizedLinear narrow = solve_gptq(rounded, factor, 300, {}, pool);
  EXPECT_TRUE(narrow.codes.equal(solve_gptq(wide, factor, 300, {}, pool).codes));
  EXPECT_TRUE(narrow.codes.equal(solve_gptq(column_major, factor, 300, {}, pool).codes));
  EXPECT_TRUE(rounded.equal(before));
  EXPECT_TRUE(column_major.equal(kept)) << "the solver works on a copy";
  EXPECT_TRUE(narrow.codes.is_contiguous());
}

TEST(Gptq, BadInputIsRefused) {
  ThreadPool pool(1);
  const auto kind_of = [&](const at::Tensor& weight, const GridOptions& grid) {
    try {
      solve_rtn(weight, grid, pool);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::internal;
  };
  EXPECT_EQ(kind_of(noise(4, 200, 28), {.group_size = 128}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(noise(4, 128, 28), {.group_size = 0}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(noise(4, 128, 28), {.group_size = -2}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(noise(4, 128, 28), {.mse = -1}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(tensor::zeros({4, 128}, at::kInt), {}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(tensor::zeros({0, 128}, at::kFloat), {}), ErrorKind::invalid_argument);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor weight = noise(4, 128, 29);
    weight.select(0, 2).select(0, 5).fill_(bad);
    EXPECT_EQ(kind_of(weight, {}), ErrorKind::numerical);
    const Factor factor = factorize(hessian(128, 300, 30), 0.005, 0.001);
    EXPECT_THROW(solve_gptq(weight, factor, 300, {}, pool), Error);
  }
  EXPECT_EQ(kind_of(tensor::full({4, 128}, 3e38, at::kFloat), {.mse = 0}), ErrorKind::numerical);
}

SolveOptions integer_options(int bits, bool symmetric, int64_t group_size, ColumnOrder order) {
  SolveOptions options;
  options.grid = {.kind = GridKind::integer,
                  .bits = bits,
                  .symmetric = symmetric,
                  .group_size = group_size,
                  .mse = 0,
                  .scale_type = at::kHalf};
  options.order = order;
  return options;
}

// Every order solves the same problem: on any grid its error against H is below plain rounding's, and what is stored
// (codes in natural order, the group of each column) decodes to weights near the source.
TEST(IntegerGrids, EveryOrderBeatsRounding) {
  ThreadPool pool(2);
  const at::Tensor h = hessian(200, 700, 71), weight = noise(40, 200, 73);
  const auto error = [&](const QuantizedLinear& q) {
    const at::Tensor e = q.weight().sub(weight).to(at::kDouble);
    return e.matmul(h.to(at::kDouble)).mul(e).sum().item<double>();
  };
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const ColumnOrder order :
           {ColumnOrder::natural, ColumnOrder::activation, ColumnOrder::group_aware}) {
        for (const bool static_groups : {false, true}) {
          SolveOptions options = integer_options(bits, symmetric, 64, order);  // the last group has 8 columns
          options.static_groups = static_groups;
          const Factor factor = factorize(h, 0.01, 0.01, &pool, column_order(h, order, 64));
          const QuantizedLinear gptq = solve_gptq(weight, factor, 700, options, pool);
          const QuantizedLinear rtn = solve_rtn(weight, options.grid, pool);
          EXPECT_EQ(gptq.scale.size(1), 4);
          EXPECT_EQ(gptq.zero.defined(), !symmetric);
          EXPECT_EQ(gptq.group_index.defined(), order == ColumnOrder::activation && !static_groups);
          EXPECT_LT(error(gptq), error(rtn))
              << bits << " bits, " << to_text(order) << (static_groups ? ", static" : "");
          EXPECT_TRUE(gptq.scale.equal(gptq.scale.to(at::kHalf).to(at::kFloat)));
        }
      }
    }
  }
}

TEST(IntegerGrids, BytesDoNotDependOnTheNumberOfThreads) {
  const at::Tensor h = hessian(160, 300, 81), weight = noise(150, 160, 82);
  for (const ColumnOrder order : {ColumnOrder::activation, ColumnOrder::group_aware}) {
    const SolveOptions options = integer_options(4, false, 32, order);
    ThreadPool one(1);
    const at::Tensor places = column_order(h, order, 32);
    const QuantizedLinear first =
        solve_gptq(weight, factorize(h, 0.05, 0.01, &one, places), 300, options, one);
    for (const int threads : {2, 3}) {
      ThreadPool pool(threads);
      const QuantizedLinear again =
          solve_gptq(weight, factorize(h, 0.05, 0.01, &pool, places), 300, options, pool);
      EXPECT_TRUE(again.codes.equal(first.codes));
      EXPECT_TRUE(again.zero.equal(first.zero));
      EXPECT_TRUE(again.scale.equal(first.scale));
    }
  }
}

}  // namespace
}  // namespace gramian
