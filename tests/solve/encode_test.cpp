#include "solve/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "solve/factor.h"
#include "solve/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using solve_test::hessian;
using solve_test::noise;

SolveOptions options_of(const char* type) {
  return {.grid = {.kind = GridKind::ggml, .codec = find_codec(type)}, .damp_percent = 0.05};
}

class EncodeTest : public testing::Test {
 protected:
  // tr(E H Eᵀ)
  double error(const QuantizedLinear& solved, const at::Tensor& weight, const at::Tensor& h) const {
    const at::Tensor e = weight.to(at::kDouble).sub(solved.weight().to(at::kDouble));
    return e.matmul(h.to(at::kDouble)).mul(e).sum().item<double>();
  }
  ThreadPool pool{2}, one{1};
};

TEST_F(EncodeTest, MeanSquaresLeaveNoColumnWithoutWeight) {
  const at::Tensor squares = tensor::zeros({4}, at::kDouble);
  squares[0] = 6.0;
  squares[2] = 2.0;
  const ColumnImportance some = mean_squares(squares, 2);
  EXPECT_EQ(some.without_data, 2);
  const float* weights = some.weights.const_data_ptr<float>();
  EXPECT_EQ(weights[0], 3.0f);
  EXPECT_EQ(weights[2], 1.0f);
  EXPECT_FLOAT_EQ(weights[1], 1e-4f);
  EXPECT_EQ(weights[1], weights[3]);
  const ColumnImportance none = mean_squares(tensor::zeros({4}, at::kDouble), 5);
  EXPECT_EQ(none.without_data, 4);
  EXPECT_TRUE(none.weights.eq(1).all().item<bool>());
}

TEST_F(EncodeTest, RowsThatABlockDoesNotDivideGetLlamaCppsType) {
  const auto type = [](const char* asked, int64_t columns) {
    return std::string(fitting_codec(*find_codec(asked), columns).name);
  };
  EXPECT_EQ(type("IQ2_XXS", 768), "IQ2_XXS");
  EXPECT_EQ(type("IQ2_XXS", 576), "IQ4_NL");
  EXPECT_EQ(type("Q2_K", 640), "Q4_0");
  EXPECT_EQ(type("Q4_K", 896), "Q5_0");
  EXPECT_EQ(type("Q5_K", 896), "Q5_1");
  EXPECT_EQ(type("Q6_K", 896), "Q8_0");
  EXPECT_EQ(type("Q4_0", 64), "Q4_0");
  EXPECT_EQ(type("IQ2_XXS", 100), "F16");
  EXPECT_EQ(type("Q8_0", 100), "F16");
}

TEST_F(EncodeTest, BlocksAreTheCodecsWhateverTheThreads) {
  const at::Tensor weight = noise(70, 512, 3).mul(0.1);
  const at::Tensor importance = noise(1, 512, 4).square().flatten().contiguous();
  for (const char* type : {"IQ2_XXS", "Q4_K", "Q8_0"}) {
    const Codec& codec = *find_codec(type);
    const GridOptions grid = options_of(type).grid;
    const QuantizedLinear solved = solve_encode(weight, {importance, 0}, grid, pool);
    std::vector<uint8_t> expected(static_cast<size_t>(70 * codec.row_bytes(512)));
    encode_rows(codec, weight.const_data_ptr<float>(), 70, 512,
                {.importance = importance.const_data_ptr<float>(), .level = cpu_level()}, expected.data(),
                "w");
    const auto* found = solved.blocks.const_data_ptr<uint8_t>();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found)) << type;
    EXPECT_TRUE(solve_encode(weight, {importance, 0}, grid, one).blocks.equal(solved.blocks)) << type;
  }
}

// llama.cpp's search makes zeros of a block that nothing weighs.
TEST_F(EncodeTest, ABlockWithoutImportanceIsNotZeroed) {
  const at::Tensor weight = noise(3, 512, 3).mul(0.1);
  const at::Tensor importance = tensor::full({512}, 1, at::kFloat);
  importance.slice(0, 0, 256).fill_(0);
  const QuantizedLinear solved = solve_encode(weight, {importance, 0}, options_of("IQ2_XXS").grid, pool);
  const QuantizedLinear plain = solve_encode(weight, {}, options_of("IQ2_XXS").grid, pool);
  const auto first = [](const QuantizedLinear& q) { return q.weight().slice(1, 0, 256); };
  EXPECT_FALSE(first(solved).eq(0).any().item<bool>());
  EXPECT_TRUE(first(solved).equal(first(plain)));
  const at::Tensor zeros = tensor::zeros({3, 512}, at::kFloat);
  EXPECT_EQ(solve_encode(zeros, {importance, 0}, options_of("IQ2_XXS").grid, pool).zero_groups, 6);
}

TEST_F(EncodeTest, AnchoredIsAnotherEncoder) {
  const at::Tensor weight = noise(3, 256, 3).mul(0.1);
  GridOptions grid = options_of("IQ2_XXS").grid;
  const QuantizedLinear search = solve_encode(weight, {}, grid, pool);
  grid.anchored = true;
  EXPECT_FALSE(search.blocks.equal(solve_encode(weight, {}, grid, pool).blocks));
}

TEST_F(EncodeTest, PlaceOfWhatIsNotFinite) {
  const at::Tensor weight = noise(3, 256, 3);
  weight[1][7] = std::nan("");
  try {
    solve_encode(weight, {}, options_of("Q4_0").grid, pool);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[1, 7]"), std::string::npos) << error.what();
  }
}

// Carrying errors on lowers what they do to the output, in blocks of 32 as of 256 columns.
TEST_F(EncodeTest, CompensationLowersTheErrorAgainstTheHessian) {
  const at::Tensor weight = noise(70, 768, 5).mul(0.1), h = hessian(768, 3000, 6);
  const Factor factor = factorize(h, 0.05, 0.01);
  for (const char* type : {"IQ2_XXS", "Q2_K", "Q4_K", "Q4_0", "IQ4_NL", "Q8_0"}) {
    SolveOptions options = options_of(type);
    const QuantizedLinear plain = solve_encode(weight, {}, options.grid, pool);
    const QuantizedLinear solved = solve_gptq_blocks(weight, factor, h, 3000, options, pool);
    EXPECT_LT(error(solved, weight, h), 0.9 * error(plain, weight, h)) << type;
    EXPECT_GT(solved.loss, 0) << type;
    EXPECT_TRUE(solve_gptq_blocks(weight, factor, h, 3000, options, one).blocks.equal(solved.blocks)) << type;
    options.importance_weighted = true;
    const QuantizedLinear weighted = solve_gptq_blocks(weight, factor, h, 3000, options, pool);
    EXPECT_EQ(weighted.blocks.equal(solved.blocks), std::string(type) == "Q8_0") << type;
    EXPECT_LT(error(weighted, weight, h), 0.9 * error(plain, weight, h)) << type;
  }
}

// Against the formula: E = (W_g - Q_g) U_gg⁻¹ by a general solver, in float64.
TEST_F(EncodeTest, TheNextBlockSeesWhatTheFormulaSays) {
  const at::Tensor weight = noise(5, 512, 7).mul(0.1), h = hessian(512, 2000, 8);
  const Factor factor = factorize(h, 0.05, 0.01);
  const SolveOptions options = options_of("Q4_K");
  const at::Tensor u = factor.upper.to(at::kDouble);
  const at::Tensor q = solve_gptq_blocks(weight, factor, h, 2000, options, pool).weight().to(at::kDouble);
  const at::Tensor d = weight.to(at::kDouble).sub(q).slice(1, 0, 256);
  at::Tensor e = d.clone();
  for (int64_t i = 0; i < 256; ++i) {
    for (int64_t j = 0; j < i; ++j) e.select(1, i).sub_(e.select(1, j).mul(u[j][i].item<double>()));
    e.select(1, i).div_(u[i][i].item<double>());
  }
  const at::Tensor carried =
      weight.to(at::kDouble).slice(1, 256, 512).sub(e.matmul(u.slice(0, 0, 256).slice(1, 256, 512)));
  const at::Tensor expected =
      solve_encode(carried.to(at::kFloat).contiguous(), {}, options.grid, pool).weight().to(at::kDouble);
  // A last bit of a weight may turn a code.
  EXPECT_GT(expected.eq(q.slice(1, 256, 512)).to(at::kDouble).mean().item<double>(), 0.99);
}

// Without correlation there is nothing to carry on.
TEST_F(EncodeTest, ADiagonalHessianLeavesThePlainCodes) {
  const at::Tensor weight = noise(9, 512, 5).mul(0.1);
  const at::Tensor index = tensor::arange(512, at::kInt);
  const at::Tensor identity = index.unsqueeze(0).eq(index.unsqueeze(1)).to(at::kFloat).contiguous();
  const Factor factor = factorize(identity, 0.05, 0.01);
  for (const char* type : {"IQ2_XXS", "Q4_K", "Q4_0"}) {
    const SolveOptions options = options_of(type);
    EXPECT_TRUE(solve_gptq_blocks(weight, factor, identity, 10, options, pool)
                    .blocks.equal(solve_encode(weight, {}, options.grid, pool).blocks))
        << type;
  }
}

}  // namespace
}  // namespace gramian
