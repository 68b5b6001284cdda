#include "formats/nvfp4_parts.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/part_check.h"
#include "kernels/nvfp4/nvfp4.h"
#include "tensor/ops.h"

namespace gramian::nvfp4_parts {
namespace {

constexpr int64_t kBlock = nvfp4::kBlock;

at::Tensor expect(const PackedParts& parts, const std::string& name, const char* key, at::ScalarType type,
                  at::IntArrayRef shape) {
  return expect_part(part(parts, key), name + "." + key, {type}, shape);
}

}  // namespace

SolveOptions settle(SolveOptions asked) {
  GridOptions& grid = asked.grid;
  const auto refuse = [](const char* option, const std::string& what) {
    throw Error(ErrorKind::invalid_argument, option, what + " is not what NVFP4 stores",
                "NVFP4 has 4-bit floats in groups of 16; leave the option out");
  };
  if (grid.bits != 4) refuse("--bits", std::to_string(grid.bits));
  if (!grid.symmetric) refuse("--asym", "a grid with zero points");
  if (grid.group_size != kBlock) refuse("--group-size", std::to_string(grid.group_size));
  if (grid.activation_bits != 16 && grid.activation_bits != 0)
    refuse("--activation-bits", str(grid.activation_bits, "-bit activations beside it"));
  if (grid.mse != 0)
    throw Error(ErrorKind::invalid_argument, "--mse",
                "NVFP4's scales are searched by their squared error or not at all", "use --method nvfp4_mse");
  grid.activation_bits = 16;
  return asked;
}

std::string unfit_reason(int64_t k) {
  return k % kBlock == 0 ? "" : str(k, " inputs are no multiple of NVFP4's blocks of ", kBlock);
}

std::vector<PlannedTensor> parts(const LinearShape& shape) {
  const int64_t n = shape.out_features, k = shape.in_features;
  return {{"weight_packed", DType::u8, {n, k / 2}},
          {"weight_scale", DType::f8_e4m3, {n, k / kBlock}},
          {"weight_global_scale", DType::f32, {1}}};
}

PackedParts pack(const QuantizedLinear& module) {
  const at::Tensor codes = module.codes.to(at::kByte);
  const int64_t k = codes.size(1);
  PackedParts parts;
  parts["weight_packed"] =
      codes.slice(1, 0, k, 2).bitwise_or(codes.slice(1, 1, k, 2).bitwise_left_shift(4)).contiguous();
  parts["weight_scale"] = module.scale.to(at::kFloat8_e4m3fn);
  parts["weight_global_scale"] = tensor::full({1}, static_cast<double>(module.global_scale), at::kFloat);
  return parts;
}

QuantizedLinear codes(const PackedParts& parts, int64_t n, int64_t k, const std::string& name) {
  if (const std::string reason = unfit_reason(k); !reason.empty()) refuse_part(name, reason);
  const at::Tensor packed = expect(parts, name, "weight_packed", at::kByte, {n, k / 2});
  const at::Tensor scale =
      expect(parts, name, "weight_scale", at::kFloat8_e4m3fn, {n, k / kBlock}).to(at::kFloat);
  expect_finite(scale, name + ".weight_scale");
  if (scale.signbit().any().item<bool>()) refuse_part(name + ".weight_scale", "holds negative scales");
  const at::Tensor global = expect(parts, name, "weight_global_scale", at::kFloat, {1});
  QuantizedLinear module;
  module.group_size = kBlock;
  module.global_scale = global.item<float>();
  if (!(module.global_scale > 0) || !std::isfinite(1 / module.global_scale))
    refuse_part(name + ".weight_global_scale", str("is ", module.global_scale, ", not a positive number"));
  module.scale = scale;
  module.codes = tensor::empty({n, k}, at::kChar);
  module.codes.slice(1, 0, k, 2).copy_(packed.bitwise_and(15));
  module.codes.slice(1, 1, k, 2).copy_(packed.bitwise_right_shift(4));
  return module;
}

nlohmann::ordered_json weights_field() {
  return {{"num_bits", 4},    {"type", "float"},     {"symmetric", true}, {"strategy", "tensor_group"},
          {"dynamic", false}, {"group_size", kBlock}};
}

bool is_weights_field(const nlohmann::ordered_json& weights) {
  const auto expected = weights_field();
  for (const auto& [key, value] : expected.items()) {
    if (!weights.contains(key) || weights.at(key) != value) return false;
  }
  return true;
}

}  // namespace gramian::nvfp4_parts
