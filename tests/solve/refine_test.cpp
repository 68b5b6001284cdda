#include "solve/refine.h"

#include <gtest/gtest.h>

#include "solve/solvers.h"
#include "solve/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// tr((W - Q)(H + λI)(W - Q)ᵀ) in float64.
double error(const at::Tensor& weight, const at::Tensor& q, const at::Tensor& hessian, double damp) {
  const at::Tensor e = weight.sub(q).to(at::kDouble);
  at::Tensor h = hessian.to(at::kDouble).clone();
  h.diagonal().add_(damp);
  return e.matmul(h).mul(e).sum().item<double>();
}

struct Case {
  const char* name;
  GridOptions grid;
  int64_t rows, columns;
};

class RefineTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    weight_ = solve_test::noise(c.rows, c.columns, 1).mul(0.05);
    weight_[0].zero_();
    hessian_ = solve_test::hessian(c.columns, 2 * c.columns, 2);
    options_.grid = c.grid;
    options_.damp_percent = 0.01;
    factor_ = factorize(hessian_, options_.damp_percent, options_.damp_step);
  }
  QuantizedLinear solved(int threads = 2) {
    ThreadPool pool(threads);
    QuantizedLinear module = solve_gptq(weight_, factor_, 100, options_, pool);
    if (options_.refine > 0) refine(module, weight_, hessian_, options_, pool);
    return module;
  }
  double error_of(const QuantizedLinear& module) {
    return error(weight_, module.weight(), hessian_, module.damp);
  }
  at::Tensor weight_, hessian_;
  Factor factor_;
  SolveOptions options_;
};

TEST_P(RefineTest, LowersTheErrorMoreWithEachSweepAndStops) {
  double before = error_of(solved());
  for (const int sweeps : {1, 2, 8}) {
    options_.refine = sweeps;
    const QuantizedLinear module = solved();
    const double now = error_of(module);
    EXPECT_LT(now, before * (1 + 1e-6)) << sweeps;
    EXPECT_GT(module.refined->codes, 0);
    if (sweeps == 1) {
      EXPECT_LT(now, 0.99 * before);
      if (!module.channel_scale.defined()) {
        EXPECT_NEAR(module.refined->gain, 1 - now / before, 1e-3);
      }
    }
    before = now;
  }
  ThreadPool pool(2);
  EXPECT_LT(before, error(weight_, solve_rtn(weight_, options_.grid, pool).weight(), hessian_, factor_.damp));
}

TEST_P(RefineTest, ScalesArePartOfIt) {
  options_.refine = 4;
  const double with = error_of(solved());
  options_.refine_scales = false;
  const QuantizedLinear module = solved();
  EXPECT_GT(error_of(module), with);
  options_.refine = 0;
  EXPECT_TRUE(module.scale.equal(solved().scale));
}

TEST_P(RefineTest, KeepsTheGridAndItsZeros) {
  options_.refine = 4;
  const QuantizedLinear module = solved();
  EXPECT_GE(module.codes.min().item<int>(), -(1 << (module.bits - 1)));
  EXPECT_LT(module.codes.max().item<int>(), 1 << (module.bits - 1));
  EXPECT_EQ(module.weight()[0].abs().max().item<float>(), 0.0f);
  EXPECT_TRUE(module.scale.to(options_.grid.scale_type).to(at::kFloat).equal(module.scale));
}

TEST_P(RefineTest, DeadColumnsAreRoundedWithTheScalesAtTheEnd) {
  hessian_.slice(0, 3, 5).zero_();
  hessian_.slice(1, 3, 5).zero_();
  factor_ = factorize(hessian_, options_.damp_percent, options_.damp_step);
  options_.refine = 2;
  const QuantizedLinear module = solved();
  const at::Tensor off = module.weight().sub(weight_).slice(1, 3, 5).abs();
  // Inside the grid no weight is farther than half a step.
  const at::Tensor inside = module.codes.slice(1, 3, 5).abs().lt((1 << (module.bits - 1)) - 1);
  EXPECT_LE(off.div(module.scale.slice(1, 0, 1)).masked_select(inside).max().item<float>(), 0.5f + 1e-5f);
}

TEST_P(RefineTest, BytesDoNotDependOnThreads) {
  options_.refine = 3;
  const QuantizedLinear one = solved(1), three = solved(3);
  EXPECT_TRUE(one.codes.equal(three.codes));
  EXPECT_TRUE(one.scale.equal(three.scale));
}

// Much damping: every column stands alone, and nothing is better than the nearest code.
TEST_P(RefineTest, DampingWithoutEndIsPlainRounding) {
  options_.damp_percent = 0.5;
  hessian_ = tensor::zeros(hessian_.sizes(), at::kFloat);
  hessian_.diagonal().fill_(1);
  factor_ = factorize(hessian_, options_.damp_percent, options_.damp_step);
  options_.refine = 3;
  options_.refine_scales = false;
  ThreadPool pool(2);
  const QuantizedLinear module = solved();
  const QuantizedLinear plain = solve_rtn(weight_, options_.grid, pool);
  if (!module.channel_scale.defined()) {
    EXPECT_TRUE(module.codes.equal(plain.codes));
  }
  EXPECT_TRUE(module.scale.equal(plain.scale));
}

INSTANTIATE_TEST_SUITE_P(
    Grids, RefineTest,
    testing::Values(
        Case{"qqq", {.mse = 0}, 70, 256}, Case{"qqq_row", {.group_size = -1}, 64, 192},
        Case{"groups_of_32", {.kind = GridKind::integer, .group_size = 32, .scale_type = at::kHalf}, 65, 160},
        Case{"last_group_partial",
             {.kind = GridKind::integer, .bits = 3, .symmetric = false, .group_size = 64, .mse = 0},
             33,
             200},
        Case{"groups_of_256",
             {.kind = GridKind::integer, .bits = 2, .group_size = 256, .scale_type = at::kBFloat16},
             16,
             512}),
    [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gramian
