#include "solve/float_grids.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/small_floats.h"
#include "solve/column_order.h"
#include "solve/scale_search.h"
#include "stats/hessian.h"
#include "support/tiny_model.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::random_normal;

constexpr int64_t kOut = 70, kIn = 80, kTokens = 400;
constexpr GridOptions kFp8{.kind = GridKind::fp8, .bits = 8, .group_size = -1, .mse = 0};

// The nearest of all values of the grid, ties to the even code.
float nearest(float x, bool fp8) {
  float best = 0;
  int chosen = 0;
  const int codes = fp8 ? 0x7f : 8;
  for (int code = 0; code < codes; ++code) {
    const float value = fp8 ? kE4m3[static_cast<size_t>(code)] : kE2m1[static_cast<size_t>(code)];
    const float off = std::fabs(std::fabs(x) - value), least = std::fabs(std::fabs(x) - best);
    if (code == 0 || off < least || (off == least && code % 2 == 0 && chosen % 2 == 1)) {
      best = value;
      chosen = code;
    }
  }
  return std::copysign(best, x);
}

class FloatGridsTest : public testing::TestWithParam<bool> {
 protected:
  FloatGridsTest() {
    HessianAccumulator sums(kIn, 1);
    sums.add(0, x_);
    hessian_ = sums.merge();
  }
  bool fp8() const { return GetParam(); }
  QuantizedLinear start(const at::Tensor& weight) {
    return fp8() ? solve_fp8(weight, kFp8, pool_)
                 : solve_scale_search(weight, {}, largest_magnitude(weight), {}, pool_);
  }
  QuantizedLinear solve(const at::Tensor& weight, const Factor& factor, int threads = 2) {
    ThreadPool pool(threads);
    QuantizedLinear solved = start(weight);
    compensate_floats(solved, weight, factor, kTokens, pool);
    return solved;
  }
  Factor factor(ColumnOrder order = ColumnOrder::natural) {
    return factorize(hessian_, 0.01, 0.01, nullptr, column_order(hessian_, order, 16));
  }
  at::Tensor scales(const QuantizedLinear& solved) const {
    return fp8() ? solved.scale : solved.scale.mul(1 / solved.global_scale);
  }
  double error(const at::Tensor& quantized) const {
    const at::Tensor e = weight_.sub(quantized);
    return e.matmul(hessian_).mul(e).sum(at::kDouble).item<double>();
  }

  ThreadPool pool_{2};
  at::Tensor weight_ = random_normal({kOut, kIn}, 1).mul(0.05);
  // Neighbours go together, so that one column can make up for another.
  at::Tensor x_ = [] {
    const at::Tensor x = random_normal({kTokens, kIn + 1}, 2);
    return x.slice(1, 0, kIn).add(x.slice(1, 1, kIn + 1)).contiguous();
  }();
  at::Tensor hessian_;
};

TEST_P(FloatGridsTest, IsTheTextbookLoop) {
  const Factor u = factor();
  const QuantizedLinear solved = solve(weight_, u);
  const at::Tensor scale = scales(solved).contiguous(), found = solved.weight();
  const float* upper = u.upper.const_data_ptr<float>();
  double loss = 0;
  int64_t apart = 0;
  for (int64_t row = 0; row < kOut; ++row) {
    std::vector<double> w(kIn);
    for (int64_t k = 0; k < kIn; ++k)
      w[static_cast<size_t>(k)] = weight_.const_data_ptr<float>()[row * kIn + k];
    for (int64_t i = 0; i < kIn; ++i) {
      const float s = scale.const_data_ptr<float>()[row * scale.size(1) + i / solved.group_size];
      const double x = w[static_cast<size_t>(i)];
      const float q = nearest(static_cast<float>(x) / s, fp8()) * s;
      const double e = (x - static_cast<double>(q)) / static_cast<double>(upper[i * kIn + i]);
      loss += e * e / 2 / kTokens;
      for (int64_t j = i + 1; j < kIn; ++j)
        w[static_cast<size_t>(j)] -= e * static_cast<double>(upper[i * kIn + j]);
      apart += std::fabs(found.const_data_ptr<float>()[row * kIn + i] - q) > 1e-6f * std::fabs(q);
    }
  }
  // A value halfway between two codes, up to rounding, and what follows from it.
  EXPECT_LE(apart, kOut * kIn / 200);
  EXPECT_NEAR(solved.loss / loss, 1, 0.01);
  EXPECT_EQ(solved.damp, u.damp);
}

TEST_P(FloatGridsTest, LowersTheErrorAndKeepsTheScales) {
  const QuantizedLinear rounded = start(weight_), solved = solve(weight_, factor());
  EXPECT_LT(error(solved.weight()), 0.8 * error(rounded.weight()));
  EXPECT_TRUE(solved.scale.equal(rounded.scale));
  EXPECT_FALSE(solved.codes.equal(rounded.codes));
}

TEST_P(FloatGridsTest, AnyOrderOfColumns) {
  const Factor u = factor(ColumnOrder::activation);
  const QuantizedLinear solved = solve(weight_, u), natural = solve(weight_, factor());
  EXPECT_FALSE(solved.codes.equal(natural.codes));
  EXPECT_LT(error(solved.weight()), 0.8 * error(start(weight_).weight()));
  EXPECT_TRUE(solved.scale.equal(natural.scale));
}

TEST_P(FloatGridsTest, ThreadsChangeNothing) {
  EXPECT_TRUE(solve(weight_, factor(), 1).codes.equal(solve(weight_, factor(), 3).codes));
}

TEST_P(FloatGridsTest, GroupsOfZerosStayZero) {
  weight_.slice(0, 3, 5).zero_();
  weight_.slice(1, 16, 32).zero_();
  const QuantizedLinear solved = solve(weight_, factor());
  EXPECT_TRUE(solved.weight().slice(0, 3, 5).eq(0).all().item<bool>());
  if (!fp8()) {
    EXPECT_TRUE(solved.codes.slice(1, 16, 32).eq(0).all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, FloatGridsTest, testing::Values(false, true),
                         [](const auto& which) { return which.param ? "fp8" : "nvfp4"; });

TEST(Fp8, RoundsToTheNearestOfARowsGrid) {
  ThreadPool pool(2);
  const at::Tensor weight = random_normal({5, 33}, 3).to(at::kBFloat16);
  weight.select(0, 2).zero_();
  GridOptions grid = kFp8;
  grid.scale_type = at::kBFloat16;
  const QuantizedLinear solved = solve_fp8(weight, grid, pool);
  EXPECT_EQ(solved.zero_groups, 1);
  EXPECT_TRUE(solved.scale.equal(solved.scale.to(at::kBFloat16).to(at::kFloat)));
  const at::Tensor w = weight.to(at::kFloat).contiguous(), found = solved.weight();
  for (int64_t i = 0; i < w.numel(); ++i) {
    const float s = solved.scale.const_data_ptr<float>()[i / 33];
    EXPECT_EQ(found.const_data_ptr<float>()[i], nearest(w.const_data_ptr<float>()[i] / s, true) * s);
  }
  weight.view(-1)[7] = INFINITY;
  EXPECT_THROW(solve_fp8(weight, grid, pool), Error);
}

TEST(SmallFloatsOfFourBits, RoundToTheNearestCodeTiesToEven) {
  for (uint8_t code = 0; code < 7; ++code) {
    const float low = kE2m1[code], high = kE2m1[code + 1], middle = (low + high) / 2;
    EXPECT_EQ(e2m1_from_f32(low), code);
    EXPECT_EQ(e2m1_from_f32(middle), code + code % 2) << int{code};
    EXPECT_EQ(e2m1_from_f32(std::nextafter(middle, low)), code);
    EXPECT_EQ(e2m1_from_f32(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(e2m1_from_f32(1e30f), 7);
}

}  // namespace
}  // namespace gramian
