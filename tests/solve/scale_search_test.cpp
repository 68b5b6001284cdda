#include "solve/scale_search.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/nvfp4/nvfp4.h"
#include "kernels/small_floats.h"
#include "stats/local_hessian.h"
#include "support/tiny_model.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::random_normal;

constexpr int64_t kOut = 70, kIn = 64;
using Candidates = ScaleSearch::Candidates;

class ScaleSearchTest : public testing::Test {
 protected:
  QuantizedLinear solve(const at::Tensor& blocks, Candidates candidates = Candidates::all, int threads = 2) {
    ThreadPool pool(threads);
    return solve_scale_search(weight_, blocks, largest_magnitude(weight_), {.candidates = candidates}, pool);
  }
  static at::Tensor blocks_of(const at::Tensor& x) {
    LocalHessianAccumulator sums(x.size(1), 1);
    sums.add(0, x);
    return sums.merge();
  }
  // Σ over blocks of the output error.
  double error(const QuantizedLinear& solved, const at::Tensor& blocks) const {
    const at::Tensor d =
        weight_.to(at::kFloat).sub(solved.weight()).view({kOut, kIn / 16, 16}).transpose(0, 1);
    return d.matmul(blocks).mul(d).sum(at::kDouble).item<double>();
  }
  at::Tensor weight_ = random_normal({kOut, kIn}, 1).mul(0.05).to(at::kBFloat16);
  // Columns of energies that differ 64 times.
  at::Tensor x_ =
      random_normal({300, kIn}, 2).mul(tensor::arange(kIn, at::kFloat).remainder(4).mul(2).exp2());
};

TEST_F(ScaleSearchTest, LowersTheErrorItIsWeighedBy) {
  const at::Tensor blocks = blocks_of(x_);
  const QuantizedLinear largest = solve({}, Candidates::largest), plain = solve({}), local = solve(blocks);
  const at::Tensor identity =
      tensor::arange(16, at::kInt).unsqueeze(0).eq(tensor::arange(16, at::kInt).unsqueeze(1)).to(at::kFloat);
  EXPECT_LT(error(plain, identity), error(largest, identity));
  EXPECT_LT(error(plain, identity), error(local, identity));
  EXPECT_LT(error(local, blocks), 0.9 * error(plain, blocks));
}

TEST_F(ScaleSearchTest, WeightIsWhatTheKernelsMakeOfTheCodes) {
  const QuantizedLinear solved = solve(blocks_of(x_));
  const float factor = nvfp4::factor_of(solved.global_scale);
  const at::Tensor weight = solved.weight();
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    const float scale = solved.scale.const_data_ptr<float>()[i / 16];
    const auto code = static_cast<uint8_t>(solved.codes.const_data_ptr<int8_t>()[i]);
    ASSERT_EQ(weight.const_data_ptr<float>()[i], nvfp4::value(code, e4m3_from_f32(scale), factor)) << i;
  }
}

TEST_F(ScaleSearchTest, SizeOfTheHessianAndThreadsChangeNothing) {
  const at::Tensor blocks = blocks_of(x_);
  const QuantizedLinear solved = solve(blocks), huge = solve(blocks.mul(0x1p90), Candidates::all, 1);
  EXPECT_TRUE(solved.codes.equal(huge.codes));
  EXPECT_TRUE(solved.scale.equal(huge.scale));
}

TEST_F(ScaleSearchTest, BlocksWithoutInputAreSearchedPlainly) {
  const at::Tensor blocks = blocks_of(x_);
  blocks.select(0, 1).zero_();
  const QuantizedLinear solved = solve(blocks), plain = solve({});
  EXPECT_TRUE(solved.scale.select(1, 1).equal(plain.scale.select(1, 1)));
  EXPECT_FALSE(solved.scale.select(1, 0).equal(plain.scale.select(1, 0)));
}

TEST_F(ScaleSearchTest, ZerosStayZeros) {
  weight_.slice(1, 16, 32).zero_();
  const QuantizedLinear solved = solve(blocks_of(x_));
  EXPECT_EQ(solved.zero_groups, kOut);
  EXPECT_TRUE(solved.weight().slice(1, 16, 32).eq(0).all().item<bool>());
  EXPECT_TRUE(solved.scale.select(1, 1).eq(1).all().item<bool>());
  weight_.zero_();
  EXPECT_EQ(solve({}).global_scale, 1);
}

TEST_F(ScaleSearchTest, RefusesWhatItCannotCode) {
  ThreadPool pool(1);
  EXPECT_THROW(solve_scale_search(random_normal({4, 24}, 1), {}, 1, {}, pool), Error);
  weight_.view(-1)[5] = NAN;
  EXPECT_THROW(solve({}), Error);
}

}  // namespace
}  // namespace gramian
