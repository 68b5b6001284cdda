#include "formats/qqq_format.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/compressed_tensors.h"
#include "formats/qqq.h"
#include "formats/qqq_check.h"
#include "formats/qqq_config.h"

namespace gramian {
namespace {

class QqqFormat final : public LinearFormat {
 public:
  const char* name() const override { return "qqq"; }
  const char* summary() const override {
    return "QQQ, 4-bit weights in int8 channels, 8-bit activations (GPT-QModel)";
  }

  SolveOptions settle(SolveOptions asked, DType) const override {
    const GridOptions& grid = asked.grid;
    const auto refuse = [](const char* option, const std::string& what) {
      throw Error(ErrorKind::invalid_argument, option, what + " is not what QQQ stores",
                  "QQQ has 4 bits, symmetric, groups of 128 or whole rows (-1)");
    };
    refuse_float_grid(*this, grid);
    if (grid.bits != 4) refuse("--bits", std::to_string(grid.bits));
    if (!grid.symmetric) refuse("--asym", "an asymmetric grid");
    if (grid.group_size != 128 && grid.group_size != -1)
      refuse("--group-size", std::to_string(grid.group_size));
    if (grid.activation_bits != 8 && grid.activation_bits != 0)
      refuse("--activation-bits", std::to_string(grid.activation_bits));
    if (asked.order == ColumnOrder::activation && !asked.static_groups)
      throw Error(ErrorKind::invalid_argument, "--order", "QQQ stores no group of each column",
                  "use --static-groups beside --order activation, or --order group-aware");
    asked.grid.activation_bits = 8;
    asked.grid.kind = GridKind::qqq;
    asked.grid.scale_type = at::kFloat;
    return asked;
  }

  std::string unfit_reason(int64_t n, int64_t k, const GridOptions& grid) const override {
    return qqq::unfit_reason(n, k, grid.group_size);
  }

  std::vector<PlannedTensor> parts(const LinearShape& shape, const GridOptions& grid) const override {
    const int64_t n = shape.out_features, k = shape.in_features;
    std::vector<PlannedTensor> parts{{"B", DType::i32, {k / 16, 2 * n}}, {"s_channel", DType::f32, {1, n}}};
    if (grid.group_size > 0 && grid.group_size != k)
      parts.push_back({"s_group", DType::f16, {k / grid.group_size, n}});
    if (shape.has_bias) parts.push_back({"bias", DType::f16, {n}});
    return parts;
  }

  const std::vector<std::string>& marks() const override {
    static const std::vector<std::string> kMarks{"B", "s_channel", "s_group"};
    return kMarks;
  }

  PackedParts pack(const QuantizedLinear& module, const PackSource& source,
                   const GridOptions&) const override {
    const at::Tensor channel_scale = source.compat_gptqmodel ? qqq::channel_scale_from_weight(source.weight)
                                     : module.channel_scale.defined() ? module.channel_scale
                                                                      : qqq::channel_scale_from_codes(module);
    const qqq::Packed packed = qqq::pack(module, channel_scale, source.bias, source.name);
    PackedParts parts{{"B", packed.B}, {"s_channel", packed.s_channel}};
    if (packed.s_group.defined() && packed.s_group.numel() > 0) parts["s_group"] = packed.s_group;
    if (packed.bias.defined()) parts["bias"] = packed.bias;
    return parts;
  }

  DecodedLinear unpack(const PackedParts& parts, int64_t n, int64_t k, const GridOptions&,
                       const std::string& name) const override {
    const qqq::Decoded decoded = qqq::unpack(qqq_parts(parts), n, k, name);
    return {decoded.weight(), decoded.bias, decoded.saturated};
  }

  ModuleCheck check(const Checkpoint& checkpoint, const std::string& name, const LinearShape& shape,
                    const GridOptions& grid) const override {
    return qqq::check_module(checkpoint, name, shape.out_features, shape.in_features, shape.has_bias,
                             grid.group_size);
  }

  std::optional<LinearShape> shape_of(const Checkpoint& checkpoint, const std::string& name,
                                      const GridOptions&) const override {
    if (!checkpoint.contains(name + ".B")) return std::nullopt;
    const StoredTensor& codes = checkpoint.tensor(name + ".B");
    if (codes.shape.size() != 2 || codes.bytes.empty()) return std::nullopt;
    return LinearShape{codes.shape[1] / 2, 16 * codes.shape[0]};
  }

  nlohmann::ordered_json config(const QuantizationFields& fields) const override {
    return qqq::quantization_config(fields);
  }

  std::optional<StoredFormat> read_config(const nlohmann::ordered_json& fields,
                                          const std::string& where) const override {
    return qqq::read_config(fields, where);
  }
  const LinearFormat& head_format() const override { return compressed_tensors_format(); }
  SolveOptions settle_head(SolveOptions asked, DType dtype) const override {
    const GridOptions grid = qqq::head_grid();
    if (asked.grid.bits != grid.bits || asked.grid.group_size != grid.group_size || !asked.grid.symmetric)
      throw Error(
          ErrorKind::invalid_argument, "--lm-head-bits",
          str("a QQQ checkpoint holds its head in ", grid.bits, " bits, symmetric, one scale per row"),
          "use --lm-head-bits 8");
    asked.grid.activation_bits = grid.activation_bits;
    return head_format().settle(asked, dtype);
  }
};

}  // namespace

const LinearFormat& qqq_format() {
  static const QqqFormat kFormat;
  return kFormat;
}

qqq::Packed qqq_parts(const PackedParts& parts) {
  return {part(parts, "B"), part(parts, "s_channel"), part(parts, "s_group"), part(parts, "bias")};
}

}  // namespace gramian
