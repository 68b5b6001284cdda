// Everything here is exact: packing is a permutation and a few roundings, the forward is integer sums and
// stated roundings.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "formats/json.h"
#include "formats/qqq.h"
#include "formats/safetensors.h"
#include "golden_sets/qqq/qqq_golden.h"
#include "kernels/w4a8/product_ref.h"
#include "kernels/w4a8/w4a8.h"
#include "runtime/qqq_linear.h"
#include "support/golden.h"
#include "support/same_bits.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

// One configuration of one layer, as index.json describes it.
struct Configuration {
  std::filesystem::path layer_file, result_file;
  int64_t group_size = 0;  // as configured
  int64_t saturated = -1;  // -1: the index does not say
};

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) found.push_back(static_cast<CpuLevel>(i));
  return found;
}

w4a8::Activation activation(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat  ? w4a8::Activation::f32
         : x.scalar_type() == at::kHalf ? w4a8::Activation::f16
                                        : w4a8::Activation::bf16;
}

// Suffixes ("f16", "bf16", ...) of the tensors called <prefix><suffix>.
std::vector<std::string> suffixes(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.starts_with(prefix)) found.push_back(name.substr(prefix.size()));
  }
  return found;
}

struct Quantized {
  at::Tensor q, scale;
};

Quantized quantize(CpuLevel level, const at::Tensor& x) {
  Quantized result{tensor::empty(x.sizes(), at::kChar), tensor::empty({x.size(0), 1}, at::kFloat)};
  w4a8::quantize_rows(level, activation(x), x.const_data_ptr(), x.size(0), x.size(1),
                      result.q.mutable_data_ptr<int8_t>(), result.scale.mutable_data_ptr<float>());
  return result;
}

// Rows with a scale of 0 or without a finite one have no codes that matter: ours are 0, the peer's come from
// a division by 0.
at::Tensor counted_rows(const at::Tensor& scale) {
  return scale.isfinite().logical_and(scale.ne(0)).squeeze(1);
}

void check_quantized(const Quantized& found, const at::Tensor& q, const at::Tensor& scale) {
  EXPECT_TRUE(same_bits(found.scale, scale));
  const at::Tensor counted = counted_rows(scale).unsqueeze(1);
  EXPECT_TRUE(same_bits(found.q, q.masked_fill(counted.logical_not(), 0)));
}

void check_pack(const qqq::Packed& found, const SafetensorsFile& expected, const std::string& prefix,
                bool grouped) {
  EXPECT_TRUE(same_bits(found.B, expected.load("B")));
  EXPECT_TRUE(same_bits(found.s_channel, expected.load(prefix + "s_channel")));
  EXPECT_EQ(found.s_group.defined(), grouped);
  if (grouped) {
    EXPECT_TRUE(same_bits(found.s_group, expected.load(prefix + "s_group")));
  }
}

// The integer sums that the reference makes of the packed codes.
at::Tensor sums(const qqq::Codes& codes, const at::Tensor& q) {
  const int64_t n = codes.values.size(0), k = codes.values.size(1);
  std::vector<uint8_t> packed(static_cast<size_t>(n * k / 2));
  std::vector<uint16_t> ratios(static_cast<size_t>(codes.ratios.defined() ? codes.ratios.numel() : 0));
  w4a8::pack_codes(codes.values.const_data_ptr<int8_t>(), n, k, packed.data());
  if (!ratios.empty()) {
    EXPECT_TRUE(w4a8::pack_ratios(codes.ratios.const_data_ptr<float>(), n, k, ratios.data()));
  }
  at::Tensor acc = tensor::empty({q.size(0), n}, at::kInt);
  w4a8::reference::multiply(
      {.codes = packed.data(), .ratios = ratios.empty() ? nullptr : ratios.data(), .channels = n, .k = k}, 0,
      n, q.const_data_ptr<int8_t>(), q.size(0), acc.mutable_data_ptr<int32_t>());
  return acc;
}

void check_forward(const qqq::Codes& codes, const SafetensorsFile& layer, const SafetensorsFile& result) {
  const auto pool = std::make_shared<ThreadPool>(2);
  for (const std::string& type : suffixes(layer, "fwd_x_")) {
    const at::Tensor x = layer.load("fwd_x_" + type), scale = layer.load("fwd_s_" + type);
    const at::Tensor expected_acc = result.load("fwd_acc_" + type);
    for (const CpuLevel level : levels()) {
      SCOPED_TRACE(str(type, " ", name(level)));
      const Quantized quantized = quantize(level, x);
      check_quantized(quantized, layer.load("fwd_q_" + type), scale);
      const at::Tensor acc = sums(codes, quantized.q);
      EXPECT_TRUE(
          same_bits(acc, expected_acc.masked_fill(counted_rows(scale).logical_not().unsqueeze(1), 0)));
      EXPECT_TRUE(
          same_bits(QqqLinear(codes, {pool, level}, "golden").forward(x), result.load("fwd_y_" + type)));
    }
  }
}

void check_configuration(const Configuration& configuration) {
  const SafetensorsFile layer(configuration.layer_file), result(configuration.result_file);
  const at::Tensor weight = layer.load("weight");
  QuantizedLinear module;
  module.codes = result.load("code");
  module.scale = result.load("scale");
  const int64_t n = module.codes.size(0), k = module.codes.size(1);
  module.group_size = configuration.group_size == -1 ? k : configuration.group_size;
  const bool grouped = module.group_size != k;
  ASSERT_EQ(qqq::unfit_reason(n, k, configuration.group_size), "");
  const at::Tensor dequantized =
      module.codes.to(at::kFloat).mul(module.scale.repeat_interleave(module.group_size, 1));
  EXPECT_TRUE(dequantized.to(weight.scalar_type()).equal(result.load("wq")));

  at::Tensor channel_scale;
  if (grouped) {
    channel_scale = qqq::channel_scale_from_weight(weight);
    EXPECT_TRUE(same_bits(channel_scale, result.load("scale_extra")));
  }
  const at::Tensor bias = layer.contains("bias") ? layer.load("bias") : at::Tensor();
  const qqq::Packed packed = qqq::pack(module, channel_scale, bias, "golden");
  check_pack(packed, result, "", grouped);

  // From the stored tensors, as a loader meets them.
  const qqq::Packed stored{result.load("B"), result.load("s_channel"),
                           result.contains("s_group") ? result.load("s_group") : at::Tensor(), packed.bias};
  EXPECT_TRUE(same_bits(qqq::unpack_codes(stored.B, n, k, grouped), module.codes));
  const qqq::Decoded decoded = qqq::unpack(stored, n, k, "golden");
  EXPECT_TRUE(same_bits(decoded.values, grouped ? result.load("w_int8") : module.codes.mul(16)));
  if (configuration.saturated >= 0) {
    EXPECT_EQ(decoded.saturated, configuration.saturated);
  }
  check_forward(qqq::read_codes(stored, n, k, "golden"), layer, result);

  if (grouped) {
    const qqq::Packed product = qqq::pack(module, qqq::channel_scale_from_codes(module), bias, "golden");
    check_pack(product, result, "alt_", grouped);
    EXPECT_EQ(qqq::unpack(product, n, k, "golden").saturated, 0);
  }
}

void check_activations(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const std::vector<std::string> types = suffixes(file, "x_");
  ASSERT_FALSE(types.empty());
  for (const std::string& type : types) {
    for (const CpuLevel level : levels()) {
      SCOPED_TRACE(str(type, " ", name(level)));
      check_quantized(quantize(level, file.load("x_" + type)), file.load("q_" + type),
                      file.load("s_" + type));
    }
  }
}

}  // namespace

void collect_format(const std::filesystem::path& root) {
  for (const std::filesystem::path& folder : folders_with(root, "index.json")) {
    const nlohmann::ordered_json index =
        parse_json(read_text(folder / "index.json"), (folder / "index.json").string());
    for (const auto& layer : index.at("layers")) {
      const std::string layer_name = layer.at("name");
      for (const auto& entry : layer.at("configs")) {
        Configuration configuration{folder / (layer_name + ".safetensors"),
                                    folder / entry.at("file").get<std::string>(), entry.at("group_size"),
                                    entry.value("int8_saturated", int64_t{-1})};
        add("qqq_format", entry.at("file"), [configuration] { check_configuration(configuration); });
      }
    }
  }
  for (const std::filesystem::path& folder : folders_with(root, "act_quant.safetensors")) {
    add("qqq_format", "act_quant", [folder] { check_activations(folder / "act_quant.safetensors"); });
  }
}

}  // namespace gramian::golden
