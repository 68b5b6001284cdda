// Tensors of fewer bits: every code by its definition, partial blocks, one matrix of a stack, and what is refused.
#include "formats/encoded_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/checkpoint.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

const nlohmann::ordered_json kFp8{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
const nlohmann::ordered_json kMxfp4{{"quant_method", "mxfp4"}};

// A folder with these tensors and this quantization_config.
class Encoded : public testing::Test {
 protected:
  Checkpoint open(const nlohmann::ordered_json& quantization) {
    save_safetensors(folder.path() / "model.safetensors", tensors);
    write_bytes(folder.path() / "config.json",
                nlohmann::ordered_json{{"quantization_config", quantization}}.dump());
    return Checkpoint(folder.path());
  }
  std::string fault(const nlohmann::ordered_json& quantization) {
    try {
      open(quantization);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
};

at::Tensor bytes(at::IntArrayRef shape, int64_t first, int64_t step = 7) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return tensor::arange(count, at::kLong).mul(step).add(first).remainder(256).to(at::kByte).view(shape);
}

// By the definition of E4M3: sign, exponent with bias 7, mantissa of 3 bits, no infinity.
double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6) : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

TEST_F(Encoded, EveryFp8Code) {
  tensors["w.weight"] = bytes({1, 256}, 0, 1).view(at::kFloat8_e4m3fn);
  tensors["w.weight_scale_inv"] = tensor::full({1, 2}, 1.0, at::kFloat);
  const Checkpoint checkpoint = open(kFp8);
  const at::Tensor values = checkpoint.tensor("w.weight").to_tensor();
  ASSERT_EQ(values.scalar_type(), at::kFloat);
  for (int code = 0; code < 256; ++code) {
    const float found = values[0][code].item<float>();
    if (std::isnan(e4m3(code))) {
      EXPECT_TRUE(std::isnan(found)) << code;
    } else {
      EXPECT_EQ(found, static_cast<float>(e4m3(code))) << code;
    }
  }
}

// Blocks of 128 x 128, the last ones of 2 rows and 72 columns; scales in each of their types.
TEST_F(Encoded, Fp8ScalesMeetTheirBlocks) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    tensors["w.weight"] = tensor::full({130, 200}, 1.5, at::kFloat).to(at::kFloat8_e4m3fn);
    tensors["w.weight_scale_inv"] = tensor::arange(4, at::kFloat).add(1).mul(0.25).view({2, 2}).to(type);
    const Checkpoint checkpoint = open(kFp8);
    EXPECT_FALSE(checkpoint.contains("w.weight_scale_inv"));
    const StoredTensor& stored = checkpoint.tensor("w.weight");
    EXPECT_EQ(stored.dtype, DType::f32);
    EXPECT_EQ(stored.shape, (std::vector<int64_t>{130, 200}));
    const at::Tensor values = stored.to_tensor();
    for (const int64_t row : {0, 127, 128, 129}) {
      for (const int64_t column : {0, 127, 128, 199}) {
        const double scale = 0.25 * static_cast<double>(1 + row / 128 * 2 + column / 128);
        EXPECT_EQ(values[row][column].item<float>(), static_cast<float>(1.5 * scale))
            << row << ", " << column;
      }
    }
  }
}

TEST_F(Encoded, AStackOfFp8Matrices) {
  tensors["e.gate_up_proj"] = bytes({3, 4, 130}, 1).bitwise_and(0x77).view(at::kFloat8_e4m3fn);
  tensors["e.gate_up_proj_scale_inv"] = tensor::arange(6, at::kFloat).add(1).view({3, 1, 2});
  const Checkpoint checkpoint = open(kFp8);
  const StoredTensor& stored = checkpoint.tensor("e.gate_up_proj");
  const at::Tensor all = stored.to_tensor();
  EXPECT_EQ(all.sizes(), at::IntArrayRef({3, 4, 130}));
  for (int64_t e = 0; e < 3; ++e) EXPECT_TRUE(stored.matrix(e).equal(all[e]));
  const double code = tensors["e.gate_up_proj"][2][1].to(at::kFloat)[129].item<double>();
  EXPECT_EQ(all[2][1][129].item<double>(), code * 6);
}

TEST_F(Encoded, Mxfp4ByItsDefinition) {
  tensors["e.down_proj_blocks"] = bytes({2, 3, 2, 16}, 3, 37);
  tensors["e.down_proj_scales"] = bytes({2, 3, 2}, 120, 3);
  const Checkpoint checkpoint = open(kMxfp4);
  EXPECT_EQ(checkpoint.tensors().size(), 1u);
  const StoredTensor& stored = checkpoint.tensor("e.down_proj");
  EXPECT_EQ(stored.dtype, DType::bf16);
  EXPECT_EQ(stored.shape, (std::vector<int64_t>{2, 64, 3}));  // transposed
  const at::Tensor values = stored.to_tensor();
  ASSERT_EQ(values.sizes(), at::IntArrayRef(stored.shape));
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int64_t e = 0; e < 2; ++e) {
    EXPECT_TRUE(stored.matrix(e).equal(values[e]));
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t column = 0; column < 64; ++column) {
        const int64_t byte =
            tensors["e.down_proj_blocks"][e][row][column / 32][column % 32 / 2].item<int64_t>();
        const int64_t code = column % 2 == 0 ? byte & 15 : byte >> 4;
        const int64_t scale = tensors["e.down_proj_scales"][e][row][column / 32].item<int64_t>();
        const double expected = (code < 8 ? 1 : -1) * magnitudes[code & 7] * std::pow(2.0, scale - 127);
        EXPECT_EQ(values[e][column][row].item<double>(), expected) << e << ", " << row << ", " << column;
      }
    }
  }
}

TEST_F(Encoded, CodesWithoutScalesAreRefused) {
  const at::Tensor codes = tensor::full({4, 4}, 1.0, at::kFloat).to(at::kFloat8_e4m3fn);
  tensors = {{"w.weight", codes}};
  EXPECT_NE(fault(kFp8).find("w.weight_scale_inv"), std::string::npos);
  EXPECT_NE(fault(nullptr).find("w.weight_scale_inv"), std::string::npos) << "whatever config.json says";
  tensors = {{"w.weight_scale_inv", tensor::full({1, 1}, 1.0, at::kFloat)}, {"x", codes.to(at::kFloat)}};
  EXPECT_NE(fault(kFp8).find("w.weight_scale_inv"), std::string::npos);
  tensors = {{"e.down_proj_blocks", bytes({2, 3, 2, 16}, 0)}};
  EXPECT_NE(fault(kMxfp4).find("e.down_proj_scales"), std::string::npos);
}

TEST_F(Encoded, ScalesOfAnotherShapeOrTypeAreRefused) {
  tensors["w.weight"] = tensor::full({130, 4}, 1.0, at::kFloat).to(at::kFloat8_e4m3fn);
  tensors["w.weight_scale_inv"] = tensor::full({1, 1}, 1.0, at::kFloat);
  EXPECT_NE(fault(kFp8).find("[2, 1]"), std::string::npos);
  tensors["w.weight_scale_inv"] = tensor::full({2, 1}, 1.0, at::kDouble);
  EXPECT_NE(fault(kFp8).find("F64"), std::string::npos);
  tensors = {{"e.x_blocks", bytes({2, 3, 2, 16}, 0)}, {"e.x_scales", bytes({2, 3, 3}, 0)}};
  EXPECT_NE(fault(kMxfp4).find("[2, 3, 2]"), std::string::npos);
  // Blocks whose values no 64 bits can count, though nothing is in them.
  tensors = {{"e.x_blocks", tensor::empty({0, 1, int64_t{1} << 58, 16}, at::kByte)},
             {"e.x_scales", tensor::empty({0, 1, int64_t{1} << 58}, at::kByte)}};
  EXPECT_NE(fault(kMxfp4).find("e.x_blocks"), std::string::npos);
  tensors = {{"w", tensor::full({1, 2, 4, 4}, 1.0, at::kFloat).to(at::kFloat8_e4m3fn)},
             {"w_scale_inv", tensor::full({1, 2, 1, 1}, 1.0, at::kFloat)}};
  EXPECT_NE(fault(kFp8).find("w_scale_inv"), std::string::npos) << "stacks of stacks";
  tensors = {{"e.x_blocks", bytes({2, 3, 2, 8}, 0)}, {"e.x_scales", bytes({2, 3, 2}, 0)}};
  EXPECT_NE(fault(kMxfp4).find("e.x_blocks"), std::string::npos);
}

TEST(DecodedSource, KindsByTheirConfiguration) {
  const auto decoded = [](const nlohmann::ordered_json& quantization) {
    return is_decoded_source({{"quantization_config", quantization}}, "config.json");
  };
  EXPECT_TRUE(decoded(kFp8));
  EXPECT_TRUE(decoded(kMxfp4));
  EXPECT_FALSE(decoded({{"quant_method", "gptq"}}));
  EXPECT_FALSE(decoded(nullptr));
  EXPECT_FALSE(is_decoded_source(nlohmann::ordered_json::object(), "config.json"));
  EXPECT_THROW(decoded({{"quant_method", "fp8"}}), Error) << "one scale a tensor is another form";
  EXPECT_THROW(decoded({{"quant_method", "fp8"}, {"weight_block_size", {128}}}), Error);
  EXPECT_THROW(decoded({{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}), Error);
  EXPECT_THROW(decoded({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}}), Error);
}

}  // namespace
}  // namespace gramian
