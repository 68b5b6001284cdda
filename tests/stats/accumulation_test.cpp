// hessian_input_dtype, staging_dtype and chunks: what they come to, what is refused, and that each changes the sum.
#include "stats/accumulation.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "stats/hessian.h"
#include "stats/local_hessian.h"
#include "stats/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::make_rows;

struct Case {
  DType activations;
  HessianInput input;
  std::optional<DType> staging;
  bool device;  // multiplies bf16
  bool round, products;
  int warnings;
};

TEST(Accumulation, TheTableHolds) {
  constexpr auto f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
  constexpr auto automatic = HessianInput::automatic, float32 = HessianInput::float32,
                 bfloat16 = HessianInput::bfloat16;
  const Case cases[] = {
      {bf16, automatic, {}, true, false, true, 0},       {bf16, automatic, {}, false, false, false, 0},
      {bf16, automatic, bf16, true, false, true, 0},     {bf16, automatic, f32, true, false, false, 0},
      {bf16, float32, {}, true, false, false, 0},        {bf16, float32, bf16, true, false, false, 0},
      {bf16, bfloat16, {}, true, false, true, 0},        {bf16, bfloat16, {}, false, false, false, 1},
      {bf16, bfloat16, bf16, true, false, true, 0},      {f32, automatic, {}, true, false, false, 0},
      {f16, automatic, {}, true, false, false, 0},       {f32, float32, f32, true, false, false, 0},
      {f32, automatic, bf16, true, true, true, 1},       {f16, bfloat16, bf16, true, true, true, 1},
      {f32, bfloat16, bf16, false, true, false, 2},      {f32, float32, bf16, true, true, false, 1},
      {DType::f64, automatic, {}, true, false, false, 0}};
  for (const Case& test : cases) {
    Log log(LogLevel::quiet);
    const Accumulation how =
        resolve({.input = test.input, .staging = test.staging},
                {.activations = test.activations, .columns = 8, .bf16_products = test.device}, &log);
    SCOPED_TRACE(str(dtype_name(test.activations), " ", to_text(test.input), " staging ",
                     test.staging.has_value(), " device ", test.device));
    EXPECT_EQ(how.round_to_bf16, test.round);
    EXPECT_EQ(how.bf16_products, test.products);
    EXPECT_EQ(how.chunk_rows, 0);
    EXPECT_EQ(static_cast<int>(log.warnings().size()), test.warnings);
  }
}

TEST(Accumulation, ContradictionsAreRefused) {
  const AccumulationSettings bfloat16{.input = HessianInput::bfloat16};
  for (const DType type : {DType::f32, DType::f16, DType::f64}) {
    EXPECT_THROW(resolve(bfloat16, {.activations = type, .bf16_products = true}, nullptr), Error);
  }
  AccumulationSettings contradiction = bfloat16;
  contradiction.staging = DType::f32;
  EXPECT_THROW(resolve(contradiction, {.activations = DType::bf16}, nullptr), Error);
  AccumulationSettings compat = bfloat16;
  compat.gptqmodel = true;
  EXPECT_THROW(resolve(compat, {.activations = DType::bf16}, nullptr), Error);
  EXPECT_THROW(parse_hessian_input("float16"), Error);
  EXPECT_THROW(parse_staging("auto"), Error);
}

TEST(Accumulation, ChunksCountRowsOfTheStagingType) {
  const AccumulationSource f32{.activations = DType::f32, .columns = 100, .bf16_products = true};
  const AccumulationSource bf16{.activations = DType::bf16, .columns = 100, .bf16_products = true};
  EXPECT_EQ(resolve({.chunk_bytes = 4000}, f32, nullptr).chunk_rows, 10);
  EXPECT_EQ(resolve({.chunk_bytes = 4000}, bf16, nullptr).chunk_rows, 20);
  EXPECT_EQ(resolve({.staging = DType::bf16, .chunk_bytes = 4000}, f32, nullptr).chunk_rows, 20);
  EXPECT_EQ(resolve({.staging = DType::f32, .chunk_bytes = 4000}, bf16, nullptr).chunk_rows, 10);
  EXPECT_EQ(resolve({.chunk_bytes = 1}, f32, nullptr).chunk_rows, 1);
  EXPECT_EQ(resolve({.chunk_size = 7, .chunk_bytes = 4000}, f32, nullptr).chunk_rows, 7);
}

// GPT-QModel stages rows in chunks only, and never fp32 ones; its products are fp32.
TEST(Accumulation, GptqmodelNeverStagesFloat32Low) {
  const auto compat = [](DType type, std::optional<DType> staging, int64_t chunk) {
    return resolve({.staging = staging, .chunk_size = chunk, .gptqmodel = true},
                   {.activations = type, .columns = 4, .bf16_products = true}, nullptr);
  };
  for (const int64_t chunk : {0, 16}) {
    const Accumulation f32 = compat(DType::f32, DType::bf16, chunk);
    EXPECT_FALSE(f32.round_to_bf16 || f32.bf16_products);
    EXPECT_FALSE(compat(DType::bf16, {}, chunk).bf16_products);
  }
  EXPECT_FALSE(compat(DType::f16, DType::bf16, 0).round_to_bf16);
  EXPECT_EQ(compat(DType::f16, DType::bf16, 16).round_to_bf16, tensor::cpu_has_bf16());
}

// Sharing needs what settings come to, not how they are written.
TEST(Accumulation, EqualEffectsCompareEqual) {
  const AccumulationSource source{.activations = DType::f32, .columns = 64};
  const AccumulationSettings rows{.chunk_size = 32}, bytes{.chunk_bytes = 32 * 64 * 4};
  EXPECT_FALSE(rows == bytes);
  EXPECT_EQ(resolve(rows, source, nullptr), resolve(bytes, source, nullptr));
  EXPECT_EQ(resolve({.input = HessianInput::float32}, source, nullptr), resolve({}, source, nullptr));
  EXPECT_FALSE(resolve(rows, source, nullptr) == resolve({}, source, nullptr));
}

at::Tensor hessian(const at::Tensor& x, const AccumulationSettings& settings, Log* log = nullptr) {
  HessianAccumulator accumulator(x.size(1), 1, settings, log);
  accumulator.add(0, x);
  return accumulator.merge();
}

TEST(Accumulation, StagingRoundsAsTheTypeDoes) {
  const at::Tensor x = make_rows(1500, 40, 1), rounded = x.to(at::kBFloat16);
  const at::Tensor staged = hessian(x, {.staging = DType::bf16});
  EXPECT_FALSE(staged.equal(hessian(x, {})));
  if (cpu_level() >= CpuLevel::avx2) {
    EXPECT_TRUE(staged.equal(hessian(rounded, {})));
  }
  EXPECT_LT(testing_support::distance(staged, testing_support::exact_hessian({rounded}, 40)), 5e-6);
  LocalHessianAccumulator local(40, 1, {.staging = DType::bf16}), expected(40, 1);
  local.add(0, x);
  expected.add(0, rounded.to(at::kFloat));
  EXPECT_TRUE(local.merge().allclose(expected.merge(), 1e-4, 1e-4));
}

TEST(Accumulation, Float32OfBf16RowsIsThatOfWidenedRows) {
  const at::Tensor x = make_rows(1500, 40, 2).to(at::kBFloat16), widened = hessian(x.to(at::kFloat), {});
  EXPECT_TRUE(hessian(x, {.input = HessianInput::float32}).equal(widened));
  EXPECT_TRUE(hessian(x, {.staging = DType::f32}).equal(widened));
  EXPECT_TRUE(hessian(x, {.gptqmodel = true}).equal(widened));
  const bool differs = cpu_level() >= CpuLevel::avx512_bf16;
  EXPECT_EQ(!hessian(x, {.input = HessianInput::bfloat16}).equal(widened), differs);
}

// A CPU without bf16 products gives the fp32 result exactly and says so once, however many sums there are.
TEST(Accumulation, OneWarningForADeviceWithoutBf16Products) {
  Log log(LogLevel::quiet);
  const at::Tensor x = make_rows(300, 24, 3).to(at::kBFloat16);
  const AccumulationSettings settings{.input = HessianInput::bfloat16};
  for (int i = 0; i < 3; ++i) {
    const at::Tensor h = hessian(x, settings, &log);
    if (cpu_level() < CpuLevel::avx512_bf16) {
      EXPECT_TRUE(h.equal(hessian(x, {.input = HessianInput::float32})));
    }
  }
  EXPECT_EQ(log.warnings().size(), cpu_level() < CpuLevel::avx512_bf16 ? 1u : 0u);
  AccumulationSource device{.activations = DType::bf16, .device = "one"};
  Log devices(LogLevel::quiet);
  for (const char* name : {"one", "two", "one"}) {
    device.device = name;
    resolve(settings, device, &devices);
  }
  EXPECT_EQ(devices.warnings().size(), 2u);
}

TEST(Accumulation, RefusedActivationsLeaveNoTrace) {
  HessianAccumulator accumulator(8, 1, {.input = HessianInput::bfloat16});
  EXPECT_THROW(accumulator.add(0, make_rows(4, 8, 4)), Error);
  EXPECT_EQ(accumulator.tokens(), 0);
  EXPECT_EQ(accumulator.merge().abs().max().item<float>(), 0);
  accumulator.add(0, make_rows(4, 8, 4).to(at::kBFloat16));
  EXPECT_EQ(accumulator.tokens(), 4);
}

TEST(Accumulation, ChunksChangeTheOrderOfTheSumOnly) {
  const at::Tensor x = make_rows(1000, 40, 5), whole = hessian(x, {});
  for (const AccumulationSettings& settings :
       {AccumulationSettings{.chunk_size = 100}, AccumulationSettings{.chunk_bytes = 100 * 40 * 4}}) {
    const at::Tensor chunked = hessian(x, settings);
    EXPECT_FALSE(chunked.equal(whole));
    EXPECT_LT(testing_support::distance(chunked, whole), 2e-6);
    EXPECT_TRUE(chunked.equal(hessian(x, {.chunk_size = 100})));
  }
}

}  // namespace
}  // namespace gramian
