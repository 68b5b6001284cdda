#include "formats/qqq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Shape {
  int64_t n, k, group_size;  // group size as configured
  bool grouped() const { return group_size == 128 && k != 128; }
};
const Shape kShapes[] = {{128, 192, -1}, {64, 128, -1},   {64, 128, 128}, {128, 64, -1},  {192, 128, -1},
                         {64, 256, 128}, {192, 384, 128}, {320, 256, -1}, {128, 512, 128}};

// Codes and scales as a solver gives them: the scale of a group follows its weights, so codes reach the ends
// of the range.
QuantizedLinear random_module(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  QuantizedLinear module;
  module.group_size = shape.grouped() ? 128 : shape.k;
  module.codes = tensor::empty({shape.n, shape.k}, at::kChar);
  auto* codes = module.codes.mutable_data_ptr<int8_t>();
  for (int64_t i = 0; i < module.codes.numel(); ++i)
    codes[i] = static_cast<int8_t>(static_cast<int>(random() % 16) - 8);
  module.scale = tensor::empty({shape.n, shape.k / module.group_size}, at::kFloat);
  auto* scale = module.scale.mutable_data_ptr<float>();
  std::uniform_real_distribution<float> uniform(0.001f, 0.05f);
  for (int64_t i = 0; i < module.scale.numel(); ++i) scale[i] = uniform(random);
  return module;
}

qqq::Packed pack(const QuantizedLinear& module, const at::Tensor& bias = {}) {
  return qqq::pack(module, qqq::channel_scale_from_codes(module), bias, "layer.proj");
}

void expect_error(ErrorKind kind, const std::string& text, const std::function<void()>& body) {
  try {
    body();
    FAIL() << "no error; expected one that says '" << text << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

// The place of (k, n), from the format's inverse map.
struct Place {
  int64_t row, column;
  int shift;
};
Place place(int64_t n, int64_t k, bool grouped) {
  const int64_t kk = k % 16, nn = n % 64;
  const int64_t r = kk % 4, b = nn % 16 / 8, i = 4 * (nn % 8) + kk / 4, j = nn / 16;
  const int64_t p = grouped ? 2 * b + r / 2 + 4 * (r % 2) : 2 * r + 1 - b;
  return {k / 16, 128 * (n / 64) + 4 * i + j, static_cast<int>(4 * p)};
}

TEST(Qqq, EveryNibbleOfBIsTheCodeOfOneWeight) {
  for (const Shape& shape : kShapes) {
    const QuantizedLinear module = random_module(shape, 1);
    const qqq::Packed packed = pack(module);
    ASSERT_EQ(packed.B.sizes(), at::IntArrayRef({shape.k / 16, 2 * shape.n}));
    const auto* words = packed.B.const_data_ptr<int32_t>();
    const auto* codes = module.codes.const_data_ptr<int8_t>();
    std::vector<uint32_t> seen(static_cast<size_t>(packed.B.numel()), 0);
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t k = 0; k < shape.k; ++k) {
        const Place at = place(n, k, shape.grouped());
        const int64_t index = at.row * 2 * shape.n + at.column;
        const int nibble = static_cast<int>((static_cast<uint32_t>(words[index]) >> at.shift) & 15u);
        const int code = codes[n * shape.k + k];
        ASSERT_EQ(nibble, shape.grouped() ? code + 8 : code & 15) << "n " << n << " k " << k;
        seen[index] |= 15u << at.shift;
      }
    }
    for (const uint32_t mask : seen) ASSERT_EQ(mask, 0xffffffffu);
  }
}

TEST(Qqq, UnpackUndoesPack) {
  for (const Shape& shape : kShapes) {
    const QuantizedLinear module = random_module(shape, 2);
    const at::Tensor bias = tensor::arange(shape.n, at::kFloat).div(3.0);
    const qqq::Packed packed = pack(module, bias);
    EXPECT_EQ(packed.s_group.defined(), shape.grouped());
    EXPECT_TRUE(qqq::unpack_codes(packed.B, shape.n, shape.k, shape.grouped()).equal(module.codes));
    const qqq::Decoded decoded = qqq::unpack(packed, shape.n, shape.k, "layer.proj");
    EXPECT_TRUE(decoded.bias.equal(bias.to(at::kHalf)));
    EXPECT_EQ(decoded.saturated, 0);
    const at::Tensor exact =
        module.codes.to(at::kFloat).mul(module.scale.repeat_interleave(module.group_size, 1));
    if (shape.grouped()) {
      EXPECT_TRUE(decoded.s_channel.equal(qqq::channel_scale_from_codes(module)));
      // One rounding to int8 steps, and one of the ratio to f16 (values reach 127 steps).
      const at::Tensor error = decoded.weight().sub(exact).abs().div(decoded.s_channel.unsqueeze(1));
      EXPECT_LE(error.max().item<double>(), 0.5 + 127 * std::ldexp(1.0, -11));
    } else {
      EXPECT_TRUE(decoded.s_channel.mul(16).equal(module.scale.reshape({-1})));
      EXPECT_TRUE(decoded.values.equal(module.codes.mul(16)));
      EXPECT_TRUE(decoded.weight().equal(exact));
    }
  }
}

TEST(Qqq, ScalesStandInTheStoredOrder) {
  const Shape shape{128, 256, 128};
  QuantizedLinear module = random_module(shape, 3);
  const at::Tensor channel = tensor::arange(shape.n, at::kFloat).add(1);
  // Ratio of channel n in group g: 1 + n + 1000 g, exact in f16 up to 2048.
  module.scale = tensor::empty({shape.n, 2}, at::kFloat);
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t g = 0; g < 2; ++g) {
      module.scale.mutable_data_ptr<float>()[n * 2 + g] =
          static_cast<float>(n + 1) * static_cast<float>(1 + n + 1000 * g);
    }
  }
  const qqq::Packed packed = qqq::pack(module, channel, {}, "layer.proj");
  const auto* s_channel = packed.s_channel.const_data_ptr<float>();
  EXPECT_EQ(std::vector<float>(s_channel, s_channel + 12),
            (std::vector<float>{1, 2, 9, 10, 17, 18, 25, 26, 3, 4, 11, 12}));
  const at::Tensor ratios = packed.s_group.to(at::kFloat);
  const auto* s_group = ratios.const_data_ptr<float>();
  EXPECT_EQ(std::vector<float>(s_group, s_group + 10),
            (std::vector<float>{1, 9, 17, 25, 33, 41, 49, 57, 2, 10}));
  EXPECT_EQ(s_group[shape.n], 1001.0f);
  EXPECT_EQ(s_group[64], 65.0f);
}

TEST(Qqq, ProductRuleKeepsEveryIntegerInsideInt8) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Shape shape{64, 256, 128};
    QuantizedLinear module = random_module(shape, seed);
    module.codes.select(0, 3).zero_();
    const at::Tensor scale = qqq::channel_scale_from_codes(module);
    EXPECT_EQ(scale.select(0, 3).item<float>(), 1.0f / 127.0f);
    const qqq::Decoded decoded = qqq::unpack(pack(module), shape.n, shape.k, "layer.proj");
    EXPECT_EQ(decoded.saturated, 0) << "seed " << seed;
    EXPECT_GE(decoded.values.min().item<int64_t>(), -127) << "seed " << seed;
  }
}

TEST(Qqq, IntegersOutsideInt8AreClampedAndCounted) {
  const Shape shape{64, 256, 128};
  QuantizedLinear module = random_module(shape, 4);
  module.codes.zero_();
  module.scale.fill_(18.5);
  const auto set = [&](int64_t n, int64_t k, int code) {
    module.codes.mutable_data_ptr<int8_t>()[n * shape.k + k] = static_cast<int8_t>(code);
  };
  set(0, 0, -8);   // -148
  set(1, 130, 7);  // 129.5 -> 130
  set(2, 5, 6);    // 111
  set(3, 5, -7);   // -129.5 -> -130
  const qqq::Decoded decoded =
      qqq::unpack(qqq::pack(module, tensor::full({shape.n}, 1.0, at::kFloat), {}, "layer.proj"), shape.n,
                  shape.k, "layer.proj");
  EXPECT_EQ(decoded.saturated, 3);
  const auto* values = decoded.values.const_data_ptr<int8_t>();
  EXPECT_EQ(values[0], -128);
  EXPECT_EQ(values[shape.k + 130], 127);
  EXPECT_EQ(values[2 * shape.k + 5], 111);
  EXPECT_EQ(values[3 * shape.k + 5], -128);
}

TEST(Qqq, WeightRuleTakesTheLargestMagnitude) {
  const at::Tensor weight = tensor::zeros({2, 64}, at::kBFloat16);
  weight.select(0, 1).fill_(-0.5);
  const at::Tensor scale = qqq::channel_scale_from_weight(weight);
  EXPECT_EQ(scale.select(0, 0).item<float>(), 1.0f / 127.0f);
  EXPECT_EQ(scale.select(0, 1).item<float>(), 0.5f / 127.0f);
}

TEST(Qqq, TileRule) {
  struct Row {
    int64_t k, n, group_size;
    std::string says;  // empty: fits
  };
  for (const Row& row : std::vector<Row>{{192, 128, -1, ""},
                                         {128, 64, -1, ""},
                                         {128, 64, 128, ""},
                                         {64, 128, -1, ""},
                                         {128, 192, -1, ""},
                                         {896, 4864, 128, ""},
                                         {64, 64, -1, "unquantized"},
                                         {320, 192, -1, "unquantized"},
                                         {64, 320, -1, "unquantized"},
                                         {4096, 96, -1, "unquantized"},
                                         {192, 128, 128, "group size -1"},
                                         {256, 128, 64, "use 128"},
                                         {256, 128, 256, "use 128"},
                                         {0, 128, -1, "unquantized"},
                                         {128, 0, -1, "unquantized"},
                                         {-128, 64, -1, "unquantized"}}) {
    const std::string reason = qqq::unfit_reason(row.n, row.k, row.group_size);
    if (row.says.empty()) {
      EXPECT_EQ(reason, "") << row.k << "x" << row.n;
    } else {
      EXPECT_NE(reason.find(row.says), std::string::npos) << row.k << "x" << row.n << ": '" << reason << "'";
    }
  }
}

TEST(Qqq, PackRefusesWhatTheFormatCannotHold) {
  const Shape shape{64, 256, 128};
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, nan, 1e9f}) {
    QuantizedLinear module = random_module(shape, 5);
    const at::Tensor channel = qqq::channel_scale_from_codes(module);
    module.scale.select(0, 7).select(0, 1).fill_(bad);
    expect_error(ErrorKind::numerical, "layer.proj.s_group",
                 [&] { qqq::pack(module, channel, {}, "layer.proj"); });
  }
  for (const float bad : {infinity, nan}) {
    QuantizedLinear rows = random_module({64, 256, -1}, 5);
    rows.scale.select(0, 9).fill_(bad);
    expect_error(ErrorKind::numerical, "layer.proj.s_channel", [&] { pack(rows); });
    const QuantizedLinear groups = random_module(shape, 5);
    const at::Tensor channel = qqq::channel_scale_from_codes(groups);
    channel.select(0, 9).fill_(bad);
    expect_error(ErrorKind::numerical, "layer.proj.s_",
                 [&] { qqq::pack(groups, channel, {}, "layer.proj"); });
  }
  const QuantizedLinear module = random_module(shape, 5);
  const at::Tensor bias = tensor::zeros({shape.n}, at::kFloat);
  bias.select(0, 3).fill_(-65520.0);
  expect_error(ErrorKind::numerical, "layer.proj.bias", [&] { pack(module, bias); });
  bias.select(0, 3).fill_(-65519.0);
  EXPECT_EQ(pack(module, bias).bias.select(0, 3).item<float>(), -65504.0f);

  for (const int code : {-9, 8}) {
    QuantizedLinear wrong = random_module(shape, 6);
    wrong.codes.select(0, 1).select(0, 1).fill_(code);
    expect_error(ErrorKind::internal, "layer.proj", [&] { pack(wrong); });
  }
}

// A group whose weights are all zero has the scale of a group of ones, far above the scale of a row of tiny
// weights.
TEST(Qqq, ZeroGroupsOfTinyRowsAreStoredWithAFiniteRatio) {
  const Shape shape{64, 256, 128};
  QuantizedLinear module = random_module(shape, 7);
  module.codes.narrow(1, 128, 128).zero_();
  module.scale.select(1, 0).fill_(1e-7);
  module.scale.select(1, 1).fill_(2.0 / 15.0);
  const qqq::Packed packed = pack(module);
  EXPECT_TRUE(packed.s_group.isfinite().all().item<bool>());
  const qqq::Decoded decoded = qqq::unpack(packed, shape.n, shape.k, "layer.proj");
  EXPECT_EQ(decoded.values.narrow(1, 128, 128).abs().max().item<int64_t>(), 0);
  // Other writers store infinity there.
  packed.s_group.select(0, 1).fill_(std::numeric_limits<float>::infinity());
  EXPECT_TRUE(qqq::unpack(packed, shape.n, shape.k, "layer.proj").values.equal(decoded.values));
}

TEST(Qqq, UnpackAcceptsWhatOtherWritersStore) {
  const Shape shape{128, 256, -1};
  qqq::Packed rows = pack(random_module(shape, 8));
  const qqq::Decoded expected = qqq::unpack(rows, shape.n, shape.k, "layer.proj");
  rows.s_group = tensor::empty({0}, at::kHalf);
  EXPECT_TRUE(qqq::unpack(rows, shape.n, shape.k, "layer.proj").weight().equal(expected.weight()));
  rows.s_channel = rows.s_channel.reshape({shape.n});
  EXPECT_TRUE(qqq::unpack(rows, shape.n, shape.k, "layer.proj").weight().equal(expected.weight()));
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    qqq::Packed rounded = rows;
    rounded.s_channel = rows.s_channel.to(type);
    const qqq::Decoded decoded = qqq::unpack(rounded, shape.n, shape.k, "layer.proj");
    EXPECT_TRUE(decoded.s_channel.equal(expected.s_channel.to(type).to(at::kFloat)));
    qqq::Packed groups = pack(random_module({128, 256, 128}, 8));
    const at::Tensor values = qqq::unpack(groups, 128, 256, "layer.proj").values;
    groups.s_group = groups.s_group.to(at::kFloat);
    EXPECT_TRUE(qqq::unpack(groups, 128, 256, "layer.proj").values.equal(values));
    groups.s_group = groups.s_group.to(type);
    EXPECT_EQ(qqq::unpack(groups, 128, 256, "layer.proj").values.sizes(), values.sizes());
  }
}

TEST(Qqq, UnpackRefusesTensorsOfAnotherLayer) {
  const Shape shape{128, 256, 128};
  const qqq::Packed good = pack(random_module(shape, 9), tensor::zeros({shape.n}, at::kHalf));
  const auto refuse = [&](const std::string& text, const std::function<void(qqq::Packed&)>& change) {
    qqq::Packed packed = good;
    change(packed);
    expect_error(ErrorKind::corrupt_data, text, [&] { qqq::unpack(packed, shape.n, shape.k, "layer.proj"); });
  };
  refuse("layer.proj.B: expected Int [16, 256], found nothing", [](qqq::Packed& p) { p.B = at::Tensor(); });
  refuse("layer.proj.B: expected Int [16, 256], found Int [256, 16]", [](qqq::Packed& p) { p.B = p.B.t(); });
  refuse("layer.proj.B", [](qqq::Packed& p) { p.B = p.B.to(at::kLong); });
  refuse("layer.proj.B", [](qqq::Packed& p) { p.B = p.B.narrow(0, 0, 15); });
  refuse("layer.proj.s_channel", [](qqq::Packed& p) { p.s_channel = at::Tensor(); });
  refuse("layer.proj.s_channel", [](qqq::Packed& p) { p.s_channel = p.s_channel.t(); });
  refuse("layer.proj.s_channel", [](qqq::Packed& p) { p.s_channel = p.s_channel.to(at::kDouble); });
  refuse("layer.proj.s_channel", [](qqq::Packed& p) { p.s_channel = p.s_channel.clone().fill_(NAN); });
  refuse("layer.proj.s_group", [](qqq::Packed& p) { p.s_group = p.s_group.t(); });
  refuse("layer.proj.s_group", [](qqq::Packed& p) { p.s_group = p.s_group.narrow(0, 0, 1); });
  refuse("layer.proj.s_group", [](qqq::Packed& p) { p.s_group = p.s_group.to(at::kInt); });
  refuse("layer.proj.s_group", [](qqq::Packed& p) { p.s_group = p.s_group.clone().fill_(INFINITY); });
  refuse("layer.proj.bias", [](qqq::Packed& p) { p.bias = p.bias.narrow(0, 0, 64); });
  refuse("layer.proj.bias", [](qqq::Packed& p) { p.bias = p.bias.to(at::kInt); });
  expect_error(ErrorKind::corrupt_data, "layer.proj", [&] { qqq::unpack(good, 96, 256, "layer.proj"); });
  expect_error(ErrorKind::corrupt_data, "layer.proj.B", [&] { qqq::unpack(good, 64, 256, "layer.proj"); });
  // One group per row is stored in the whole-row layout, so a ratio there cannot be meant.
  qqq::Packed short_rows = pack(random_module({128, 128, 128}, 9));
  short_rows.s_group = tensor::full({1, 128}, 1.0, at::kHalf);
  expect_error(ErrorKind::corrupt_data, "layer.proj.s_group",
               [&] { qqq::unpack(short_rows, 128, 128, "layer.proj"); });
}

}  // namespace
}  // namespace gramian
