#include "solve/fallback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "solve/solvers.h"
#include "solve/support.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using solve_test::noise;
using testing_support::error_of;

constexpr GridOptions kGrid = {.kind = GridKind::integer, .symmetric = false, .group_size = 64, .mse = 0};

double error_of_codes(const at::Tensor& weight, const FallbackOptions& options) {
  ThreadPool pool(2);
  return solve_fallback(weight, kGrid, options, pool).weight().sub(weight).square().mean().item<double>();
}

TEST(Fallbacks, EveryStrategyIsNearTheWeights) {
  const at::Tensor weight = noise(16, 256, 1);
  for (const char* name : {"rtn", "midpoint", "mean", "median", "stdclip"}) {
    const FallbackStrategy strategy = parse_fallback_strategy(name);
    EXPECT_STREQ(to_text(strategy), name);
    const double error = error_of_codes(weight, {.strategy = strategy, .smoother = {}});
    EXPECT_LT(error, 0.05) << name;  // a step is about a third of a standard deviation
    EXPECT_GT(error, 0) << name;
  }
  EXPECT_EQ(error_of([] { parse_fallback_strategy("nearest"); }).kind(), ErrorKind::invalid_argument);
}

TEST(Fallbacks, RtnWithoutASmootherIsPlainRounding) {
  const at::Tensor weight = noise(16, 256, 2);
  ThreadPool pool(2);
  const QuantizedLinear plain = solve_rtn(weight, kGrid, pool),
                        fallback = solve_fallback(weight, kGrid, {}, pool);
  EXPECT_TRUE(plain.codes.equal(fallback.codes));
  EXPECT_TRUE(plain.scale.equal(fallback.scale));
  EXPECT_TRUE(plain.zero.equal(fallback.zero));
}

// One weight of each group is far out: a smoother that clips it leaves the others a finer grid.
TEST(Fallbacks, SmoothersTameOutliers) {
  at::Tensor weight = noise(16, 256, 3);
  for (int64_t group = 0; group < 4; ++group) weight.select(1, 64 * group).fill_(40);
  const auto rest = [&](const std::string& smoother) {
    ThreadPool pool(2);
    FallbackOptions options;
    options.smoother = parse_smoother(smoother);
    options.smoother.group_size_min = 64;
    const at::Tensor error = solve_fallback(weight, kGrid, options, pool).weight().sub(weight).square();
    return error.sum().sub(error.view({16, 4, 64}).select(2, 0).sum()).item<double>();
  };
  const double plain = rest("none");
  for (const char* clipping :
       {"percentile:95", "percentile_asym:2:95", "mad", "outlier:3", "softnorm:2", "log:95:8"})
    EXPECT_LT(rest(clipping), 0.5 * plain) << clipping;
  for (const char* scaling : {"row", "column"}) EXPECT_NEAR(rest(scaling), plain, 0.02 * plain) << scaling;
  EXPECT_LT(rest("mse:32:0.3"), plain);
}

TEST(Fallbacks, SmallGroupsAreNotSmoothed) {
  at::Tensor weight = noise(16, 256, 3);
  weight.select(1, 0).fill_(40);
  EXPECT_EQ(error_of_codes(weight, {.smoother = parse_smoother("mad")}), error_of_codes(weight, {}));
}

TEST(Fallbacks, SmoothersAreParsed) {
  EXPECT_EQ(parse_smoother("mad").a, 2.75);
  EXPECT_EQ(parse_smoother("mad:2.5").a, 2.5);
  EXPECT_EQ(parse_smoother("percentile_asym:1").b, 99.5);
  EXPECT_EQ(parse_smoother("percentile_asym:1:98").b, 98);
  EXPECT_EQ(parse_smoother("none").kind, Smoother::Kind::none);
  for (const char* wrong :
       {"", "soft", "mad:", "mad:x", "mad:1:2", "row:1", "mad:-1", "mad:nan", "mad:1e999"})
    EXPECT_EQ(error_of([&] { parse_smoother(wrong); }).kind(), ErrorKind::invalid_argument) << wrong;
}

}  // namespace
}  // namespace gramian
