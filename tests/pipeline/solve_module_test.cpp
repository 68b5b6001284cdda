#include "pipeline/solve_module.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/qqq_format.h"
#include "pipeline/method.h"
#include "solve/solvers.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::max_difference;
using testing_support::random_normal;

constexpr int64_t kOut = 64, kIn = 256, kTokens = 600;

class SolveModuleTest : public testing::Test {
 protected:
  SolvedModule solve(const Factor* factor, int64_t tokens, bool compat = false) {
    source_.compat_gptqmodel = compat;
    return solve_module(source_, {.factor = factor, .hessian = hessian_, .tokens = tokens},
                        {qqq_format(), options_, fallback_}, pool_);
  }
  // The weight that the module goes on with.
  at::Tensor next_weight(const SolvedModule& solved, at::ScalarType dtype) {
    const auto op = std::dynamic_pointer_cast<const DenseLinear>(replacement(solved, source_, dtype));
    EXPECT_EQ(op->weight().scalar_type(), dtype);
    bias_ = op->bias();
    return op->weight();
  }
  PackSource source_{"layer.proj",
                     {kOut, kIn, true},
                     random_normal({kOut, kIn}, 1).mul(0.05).to(at::kHalf),
                     random_normal({kOut}, 2).to(at::kHalf)};
  at::Tensor x_ = random_normal({kTokens, kIn}, 3);
  at::Tensor hessian_ = x_.t().matmul(x_).mul(2.0 / kTokens);
  Factor factor_ = factorize(hessian_, 0.005, 0.001);
  SolveOptions options_ = qqq_format().settle({}, DType::f16);
  FallbackOptions fallback_;
  ThreadPool pool_{2};
  at::Tensor bias_;
};

TEST_F(SolveModuleTest, GoesOnWithWhatIsStored) {
  const SolvedModule solved = solve(&factor_, kTokens);
  EXPECT_TRUE(solved.quantized.fallback.empty());
  const qqq::Decoded decoded = qqq::unpack(qqq_parts(solved.packed), kOut, kIn, "layer.proj");
  EXPECT_EQ(decoded.saturated, 0);
  EXPECT_TRUE(next_weight(solved, at::kFloat).equal(decoded.weight()));
  EXPECT_TRUE(bias_.equal(source_.bias.to(at::kFloat)));
  EXPECT_TRUE(next_weight(solved, at::kBFloat16).equal(decoded.weight().to(at::kBFloat16)));
  // Near the source: a 4-bit step is about a seventh of the largest weight of a group.
  EXPECT_LT(max_difference(decoded.weight(), source_.weight), 0.05);
}

TEST_F(SolveModuleTest, CompatGoesOnWithCodesTimesScale) {
  const SolvedModule solved = solve(&factor_, kTokens, true);
  const QuantizedLinear& q = solved.quantized;
  const at::Tensor expected =
      q.codes.to(at::kFloat).mul(q.scale.repeat_interleave(q.group_size, 1)).to(at::kHalf).to(at::kFloat);
  EXPECT_TRUE(next_weight(solved, at::kFloat).equal(expected));
  // The channel scale comes from the source's largest weights: some stored integers may be clamped to int8.
  const qqq::Decoded decoded = qqq::unpack(qqq_parts(solved.packed), kOut, kIn, "layer.proj");
  EXPECT_TRUE(decoded.s_channel.equal(qqq::channel_scale_from_weight(source_.weight)));
}

TEST_F(SolveModuleTest, WithoutAFactorWeightsAreRounded) {
  const SolvedModule plain = solve(nullptr, 0);
  EXPECT_TRUE(plain.quantized.fallback.empty());
  EXPECT_TRUE(std::isnan(plain.quantized.loss));
  EXPECT_TRUE(plain.quantized.codes.equal(solve_rtn(source_.weight, options_.grid, pool_).codes));
}

TEST_F(SolveModuleTest, FallbacksAreMarked) {
  const SolvedModule empty = solve(&factor_, 0);
  EXPECT_NE(empty.quantized.fallback.find("no calibration tokens"), std::string::npos)
      << empty.quantized.fallback;
  Factor failed;
  failed.attempts = 7;
  const SolvedModule unfactored = solve(&failed, kTokens);
  EXPECT_NE(unfactored.quantized.fallback.find("does not factor"), std::string::npos)
      << unfactored.quantized.fallback;
  EXPECT_EQ(unfactored.quantized.damp_attempts, 7);
  EXPECT_TRUE(unfactored.quantized.codes.equal(solve(nullptr, 0).quantized.codes));
}

// GPT-2's Conv1D and stacked experts are stored [in, out]: what is packed must not depend on how a weight lies in memory.
TEST_F(SolveModuleTest, TransposedWeightsGiveTheSameTensors) {
  const at::Tensor plain = source_.weight;
  for (const bool compat : {false, true}) {
    source_.weight = plain;
    const SolvedModule expected = solve(&factor_, kTokens, compat);
    source_.weight = plain.t().contiguous().t();
    ASSERT_FALSE(source_.weight.is_contiguous());
    const SolvedModule solved = solve(&factor_, kTokens, compat);
    for (const auto& [name, tensor] : expected.packed)
      EXPECT_TRUE(solved.packed.at(name).equal(tensor)) << name;
    EXPECT_EQ(solved.packed.at("s_channel").sizes(), at::IntArrayRef({1, kOut}));
  }
}

TEST_F(SolveModuleTest, TooFewTokensAreAReason) {
  const SolveSettings settings{qqq_format(), options_, fallback_, "3 calibration tokens, fewer than 5"};
  const SolvedModule few =
      solve_module(source_, {.factor = &factor_, .hessian = hessian_, .tokens = kTokens}, settings, pool_);
  EXPECT_EQ(few.quantized.fallback, "rtn: 3 calibration tokens, fewer than 5");
  EXPECT_TRUE(few.quantized.codes.equal(solve(nullptr, 0).quantized.codes));
}

TEST_F(SolveModuleTest, CompensationBeatsRoundingOnTheCalibrationRows) {
  const auto error = [&](const SolvedModule& solved) {
    const at::Tensor difference = next_weight(solved, at::kFloat).sub(source_.weight.to(at::kFloat));
    return x_.matmul(difference.t()).square().sum().item<double>();
  };
  EXPECT_LT(error(solve(&factor_, kTokens)), 0.9 * error(solve(nullptr, 0)));
}

// The textbook sum over these rows, in f64.
double error_over(const PackSource& source, const SolvedModule& solved, const at::Tensor& hessian,
                  int64_t step) {
  const at::Tensor w = source.weight.to(at::kDouble).slice(0, 0, c10::nullopt, step);
  const at::Tensor e = w.sub(solved.decoded.weight.to(at::kDouble).slice(0, 0, c10::nullopt, step));
  const at::Tensor h = hessian.to(at::kDouble);
  const auto energy = [&](const at::Tensor& x) { return x.matmul(h).matmul(x.t()).trace().item<double>(); };
  return std::sqrt(energy(e) / energy(w));
}

TEST_F(SolveModuleTest, RelativeErrorIsThatOfTheOutputs) {
  const SolvedModule solved = solve(&factor_, kTokens);
  const double error = relative_error(source_.weight, solved.decoded.weight, {.hessian = hessian_});
  EXPECT_NEAR(error, error_over(source_, solved, hessian_, 1), 1e-4 * error);
  // The same from the layer's outputs.
  const auto outputs = [&](const at::Tensor& weight) { return x_.matmul(weight.to(at::kFloat).t()); };
  const at::Tensor exact = outputs(source_.weight);
  EXPECT_NEAR(error, outputs(solved.decoded.weight).sub(exact).norm().div(exact.norm()).item<double>(),
              1e-4 * error);
  EXPECT_GT(relative_error(source_.weight, solve(nullptr, 0).decoded.weight, {.hessian = hessian_}), error);
  EXPECT_TRUE(std::isnan(relative_error(source_.weight, solved.decoded.weight,
                                        {.hessian = tensor::zeros({kIn, kIn}, at::kFloat)})));
}

TEST_F(SolveModuleTest, RelativeErrorTakes128RowsOfAWideLayer) {
  source_ = {"layer.proj", {384, kIn}, random_normal({384, kIn}, 5), {}};
  // Rows that are not chosen must not count, nor may the first 128 stand for all.
  source_.weight.slice(0, 1, c10::nullopt, 3).mul_(100.0);
  const SolvedModule solved = solve(&factor_, kTokens);
  const double error = relative_error(source_.weight, solved.decoded.weight, {.hessian = hessian_});
  EXPECT_NEAR(error, error_over(source_, solved, hessian_, 3), 1e-4 * error);
  EXPECT_GT(std::fabs(error - error_over(source_, solved, hessian_, 1)), 1e-3 * error);
}

TEST(Methods, AreFoundByName) {
  for (const Method& method : all_methods()) EXPECT_EQ(&find_method(method.name), &method);
  EXPECT_TRUE(find_method("qqq").compensates());
  EXPECT_TRUE(find_method("gptq").compensates());
  EXPECT_FALSE(find_method("rtn").calibrated());
  EXPECT_TRUE(find_method("local_hessian").calibrated());
  EXPECT_FALSE(find_method("local_hessian").compensates());
  EXPECT_FALSE(find_method("nvfp4_max").searches());
  EXPECT_TRUE(find_method("gptq_nvfp4").searches());
  EXPECT_TRUE(find_method("gptq_fp8").compensates());
  const Error error = error_of([] { find_method("awq"); });
  EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(error.what()).find("qqq, gptq, rtn"), std::string::npos) << error.what();
}

// The last pass judges QQQ's grouped weights as the runtime reads them.
TEST_F(SolveModuleTest, RefiningLowersTheErrorOfWhatIsStored) {
  const auto error = [&](int sweeps) {
    options_.refine = sweeps;
    const SolvedModule solved = solve(&factor_, kTokens);
    EXPECT_EQ(solved.decoded.saturated, 0);
    const qqq::Packed packed = qqq_parts(solved.packed);
    EXPECT_TRUE(qqq::unpack_codes(packed.B, kOut, kIn, true).equal(solved.quantized.codes));
    const at::Tensor off = source_.weight.to(at::kFloat).sub(solved.decoded.weight);
    return off.matmul(hessian_).mul(off).sum().item<double>();
  };
  EXPECT_LT(error(3), 0.97 * error(0));
}

}  // namespace
}  // namespace gramian
