#include "runtime/qqq_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/float16.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

at::Tensor random_normal(at::IntArrayRef shape, uint32_t seed) {
  at::Tensor tensor = tensor::empty(shape, at::kFloat);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto* data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = normal(random);
  return tensor;
}

qqq::Codes random_layer(int64_t n, int64_t k, bool with_bias) {
  qqq::Codes codes;
  codes.values = random_normal({n, k}, 1).mul(3.0).round().clamp(-8, 7).to(at::kChar);
  codes.s_channel = random_normal({n}, 2).abs().add(0.1).mul(1e-3);
  if (k % 128 == 0 && k > 128)
    codes.ratios = random_normal({k / 128, n}, 11).abs().mul(9.0).to(at::kHalf).to(at::kFloat);
  if (with_bias) codes.bias = random_normal({n}, 3).to(at::kHalf);
  return codes;
}

QqqLinear linear_of(const qqq::Codes& codes, int threads = 2) {
  return QqqLinear(codes, {std::make_shared<ThreadPool>(threads)}, "layer.proj");
}

// The formula of the format with LibTorch's arithmetic; int32 sums in double are exact.
at::Tensor expected_output(const qqq::Codes& codes, const at::Tensor& x) {
  const qqq::Decoded decoded = qqq::decode(codes);
  const at::ScalarType type = x.scalar_type();
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor sa = wide.abs().amax({-1}, true).div(127.0).to(type).to(at::kFloat);
  const at::Tensor q = wide.div(sa).round().clamp(-128, 127).masked_fill(sa.eq(0), 0.0).to(at::kDouble);
  const at::Tensor acc = q.matmul(decoded.values.to(at::kDouble).t());
  at::Tensor y = acc.to(at::kFloat).mul(sa).mul(decoded.s_channel).to(type);
  if (decoded.bias.defined()) y = y.add(decoded.bias.to(type));
  return y;
}

TEST(QqqLinear, EqualsTheFormulaForEveryTypeShapeAndThreadCount) {
  for (const bool with_bias : {false, true}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{128, 192}, {192, 128}, {64, 1152}}) {
      const qqq::Codes codes = random_layer(n, k, with_bias);
      for (const int threads : {1, 3}) {
        const QqqLinear linear = linear_of(codes, threads);
        for (const at::ScalarType type : kTypes) {
          for (const int64_t rows : {1, 3, 16, 17, 65, 130}) {
            const at::Tensor x = random_normal({rows, k}, 4).mul(3.0).to(type);
            const at::Tensor y = linear.forward(x);
            EXPECT_EQ(y.scalar_type(), type);
            EXPECT_TRUE(y.equal(expected_output(codes, x)))
                << c10::toString(type) << " rows " << rows << " n " << n;
          }
        }
      }
    }
  }
}

TEST(QqqLinear, EveryCpuLevelGivesTheSameBits) {
  const qqq::Codes codes = random_layer(128, 192, true);
  const at::Tensor x = random_normal({37, 192}, 5).to(at::kBFloat16);
  const auto pool = std::make_shared<ThreadPool>(1);
  const at::Tensor reference = QqqLinear(codes, {pool, CpuLevel::reference}, "layer.proj").forward(x);
  for (int i = 1; i <= static_cast<int>(detected_cpu_level()); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    EXPECT_TRUE(QqqLinear(codes, {pool, level}, "layer.proj").forward(x).equal(reference)) << name(level);
  }
}

TEST(QqqLinear, ZeroAndUnderflowRowsGiveTheBias) {
  const qqq::Codes codes = random_layer(64, 128, true);
  const QqqLinear linear = linear_of(codes);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = random_normal({4, 128}, 6).to(type);
    x.select(0, 1).zero_();
    if (type == at::kHalf) x.select(0, 2).fill_(63 * 0x1p-24);  // the f16 scale underflows to 0
    const at::Tensor y = linear.forward(x);
    const at::Tensor bias = codes.bias.to(type);
    EXPECT_TRUE(y.select(0, 1).equal(bias));
    EXPECT_EQ(y.select(0, 2).equal(bias), type == at::kHalf);
    EXPECT_TRUE(y.select(0, 3).equal(expected_output(codes, x).select(0, 3)));
  }
  const QqqLinear bare = linear_of(random_layer(64, 128, false));
  EXPECT_EQ(bare.forward(tensor::zeros({2, 128}, at::kHalf)).abs().max().item<double>(), 0.0);
}

TEST(QqqLinear, InfinityAndNanStayInTheirRows) {
  const qqq::Codes codes = random_layer(64, 128, true);
  const QqqLinear linear = linear_of(codes);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = random_normal({5, 128}, 7).to(type);
    const at::Tensor clean = linear.forward(x);
    x.select(0, 0).select(0, 100).fill_(-std::numeric_limits<double>::infinity());
    x.select(0, 2).select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
    x.select(0, 4).select(0, 1).fill_(std::numeric_limits<double>::infinity());
    x.select(0, 4).select(0, 127).fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor y = linear.forward(x);
    for (const int64_t row : {0, 2, 4}) EXPECT_TRUE(y.select(0, row).isnan().all().item<bool>()) << row;
    for (const int64_t row : {1, 3}) EXPECT_TRUE(y.select(0, row).equal(clean.select(0, row))) << row;
  }
}

TEST(QqqLinear, TiesRoundToEven) {
  // Weights pick single inputs, so that each output is one quantized activation.
  qqq::Codes codes;
  codes.values = tensor::zeros({64, 128}, at::kChar);
  for (int64_t n = 0; n < 64; ++n) codes.values.mutable_data_ptr<int8_t>()[n * 128 + n] = 1;
  codes.s_channel = tensor::full({64}, 1.0 / 16, at::kFloat);
  const QqqLinear linear = linear_of(codes);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = tensor::arange(128, at::kFloat).sub(32).div(2.0).unsqueeze(0);  // halves from -16 up
    x.select(1, 127).fill_(127.0);                                                       // scale 1
    const at::Tensor y = linear.forward(x.to(type)).to(at::kFloat);
    for (int64_t n = 0; n < 64; ++n) {
      const double half = (static_cast<double>(n) - 32) / 2;
      EXPECT_EQ(y.select(1, n).item<double>(), std::nearbyint(half)) << half;
    }
  }
}

TEST(QqqLinear, TakesAnyStridesAndLeadingDimensions) {
  const qqq::Codes codes = random_layer(64, 128, true);
  const QqqLinear linear = linear_of(codes);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = random_normal({6, 128}, 8).to(type);
    const at::Tensor y = linear.forward(x);
    EXPECT_TRUE(linear.forward(x.t().contiguous().t()).equal(y));
    EXPECT_TRUE(
        linear.forward(random_normal({12, 256}, 9).to(type).narrow(0, 0, 6).narrow(1, 0, 128).copy_(x))
            .equal(y));
    EXPECT_TRUE(linear.forward(x.reshape({2, 3, 128})).equal(y.reshape({2, 3, 64})));
    const at::Tensor none = linear.forward(x.narrow(0, 0, 0));
    EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 64}));
    EXPECT_EQ(none.scalar_type(), type);
  }
}

TEST(QqqLinear, RowBlocksDoNotShow) {
  // 4 MiB of int8 activations are 4096 rows of 1024: two blocks and a rest.
  const qqq::Codes codes = random_layer(64, 1024, false);
  const QqqLinear linear = linear_of(codes);
  const at::Tensor x = random_normal({8200, 1024}, 10).to(at::kBFloat16);
  const at::Tensor y = linear.forward(x);
  for (const int64_t begin : {0, 4090, 8190}) {
    EXPECT_TRUE(y.narrow(0, begin, 10).equal(linear.forward(x.narrow(0, begin, 10)))) << begin;
  }
}

TEST(QqqLinear, RefusesOtherTypesAndWidths) {
  const QqqLinear linear = linear_of(random_layer(64, 128, false));
  for (const at::Tensor& x : {tensor::zeros({2, 128}, at::kDouble), tensor::zeros({2, 128}, at::kChar),
                              tensor::zeros({2, 127}, at::kFloat), tensor::zeros({128, 2}, at::kFloat)}) {
    try {
      linear.forward(x);
      FAIL() << x.sizes();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("layer.proj"), std::string::npos) << error.what();
    }
  }
  qqq::Codes wide;
  wide.values = tensor::zeros({64, 131072}, at::kChar);
  wide.s_channel = tensor::full({64}, 1.0, at::kFloat);
  EXPECT_THROW(linear_of(wide), Error);
  // 7 times a ratio just below 0.5 rounds to 3, in f16 to 4.
  qqq::Codes fine = random_layer(64, 256, false);
  fine.ratios.fill_(std::nextafter(0.5f, 0.0f));
  EXPECT_THROW(linear_of(fine), Error);
}

TEST(QqqLinear, LayersOfOneInputTogetherGiveWhatEachGives) {
  const auto pool = std::make_shared<ThreadPool>(3);
  const QqqLinear q(random_layer(192, 256, true), {pool}, "q"), k(random_layer(64, 256, false), {pool}, "k"),
      v(random_layer(128, 256, true), {pool}, "v");
  const std::vector<const LinearOp*> all = {&q, &k, &v};
  for (const at::ScalarType type : kTypes) {
    for (const int64_t rows : {0, 1, 4, 5, 29, 400}) {
      const at::Tensor x = random_normal({rows, 256}, 12).to(type);
      const std::vector<at::Tensor> outputs = q.forward_together(all, x);
      ASSERT_EQ(outputs.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(outputs[i].equal(all[i]->forward(x))) << rows;
    }
  }
  const DenseLinear dense(random_normal({8, 256}, 13), {});
  const at::Tensor x = random_normal({2, 256}, 14);
  const std::vector<at::Tensor> mixed = q.forward_together({&q, &dense}, x);
  EXPECT_TRUE(mixed[0].equal(q.forward(x)));
  EXPECT_TRUE(mixed[1].equal(dense.forward(x)));
}

TEST(QqqLinear, HoldsHalfAByteAWeightAndItsScales) {
  EXPECT_EQ(linear_of(random_layer(64, 128, false)).bytes(), 64 * 128 / 2 + 64 * 4);
  EXPECT_EQ(linear_of(random_layer(64, 1152, false)).bytes(), 64 * 1152 / 2 + 64 * 9 * 2 + 64 * 4);
}

// The conversions of the kernels against LibTorch's.
TEST(QqqLinear, HalfConversionsEqualLibTorchs) {
  std::mt19937 random(11);
  at::Tensor wide = tensor::empty({1 << 18}, at::kFloat);
  auto* bits = reinterpret_cast<uint32_t*>(wide.mutable_data_ptr<float>());
  for (int64_t i = 0; i < wide.numel(); ++i) {
    // Every exponent; half of the values lie on or beside a rounding boundary of one of the types.
    const uint32_t value = static_cast<uint32_t>(random());
    const uint32_t cut = i % 4 == 0 ? 0xfffff000u : i % 4 == 1 ? 0xffff8000u : 0xffffffffu;
    bits[i] = (value & cut) + (i % 8 < 4 ? static_cast<uint32_t>(random() % 3) - 1u : 0u);
  }
  const at::Tensor half = wide.to(at::kHalf), brain = wide.to(at::kBFloat16);
  const auto* f32 = wide.const_data_ptr<float>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    if (std::isnan(f32[i])) continue;
    ASSERT_EQ(f16_from_f32(f32[i]), half.const_data_ptr<at::Half>()[i].x) << f32[i];
    ASSERT_EQ(bf16_from_f32(f32[i]), brain.const_data_ptr<at::BFloat16>()[i].x) << f32[i];
  }
}

}  // namespace
}  // namespace gramian
