#include "formats/compressed_tensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/bit_stream.h"
#include "formats/nvfp4_parts.h"
#include "formats/part_check.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRead =
    "compressed-tensors with integer weights of 4 or 8 bits, NVFP4 and FP8 are read";

bool is_nvfp4(const GridOptions& grid) { return grid.kind == GridKind::nvfp4; }
bool is_fp8(const GridOptions& grid) { return grid.kind == GridKind::fp8; }
bool is_packed(const GridOptions& grid) { return grid.activation_bits == 16 && !is_fp8(grid); }
const char* kind_of(const GridOptions& grid) {
  return is_nvfp4(grid)    ? "nvfp4-pack-quantized"
         : is_fp8(grid)    ? "float-quantized"
         : is_packed(grid) ? "pack-quantized"
                           : "int-quantized";
}
int midpoint(const GridOptions& grid) { return 1 << (grid.bits - 1); }

int64_t groups_of(int64_t k, const GridOptions& grid) {
  return grid.group_size == -1 ? 1 : k / grid.group_size;
}

at::Tensor expect(const PackedParts& parts, const std::string& name, const char* key,
                  std::initializer_list<at::ScalarType> types, at::IntArrayRef shape) {
  return expect_part(part(parts, key), name + "." + key, types, shape);
}

class CompressedTensors final : public LinearFormat {
 public:
  const char* name() const override { return "compressed-tensors"; }
  const char* summary() const override {
    return "W4A16 and W8A16 packed, W8A8 and W4A8 as int8, NVFP4, FP8 (vLLM, SGLang, transformers)";
  }

  SolveOptions settle(SolveOptions asked, DType dtype) const override {
    GridOptions& grid = asked.grid;
    const auto refuse = [](const char* option, const std::string& what, const std::string& remedy) {
      throw Error(ErrorKind::invalid_argument, option, "compressed-tensors has no " + what, remedy);
    };
    if (is_nvfp4(grid)) return nvfp4_parts::settle(asked);
    if (is_fp8(grid)) return settle_fp8(asked, dtype);
    if (grid.activation_bits == 0) grid.activation_bits = 16;
    if (grid.bits != 4 && grid.bits != 8) refuse("--bits", str(grid.bits, "-bit weights"), "use 4 or 8");
    if (grid.activation_bits != 16 && grid.activation_bits != 8)
      refuse("--activation-bits", str(grid.activation_bits, "-bit activations here"), "use 16 or 8");
    if (!is_packed(grid) && !grid.symmetric)
      refuse("--asym", "zero points beside 8-bit activations", "use --sym, or --activation-bits 16");
    if (asked.order == ColumnOrder::activation && !asked.static_groups && grid.group_size != -1)
      refuse("--order", "group of each column",
             "use --static-groups beside --order activation, or --order group-aware");
    grid.kind = GridKind::integer;
    if (!grid.unrounded_scales) grid.scale_type = tensor::scalar_type(dtype);
    return asked;
  }

  // Loaders multiply a head's activations as they come.
  SolveOptions settle_head(SolveOptions asked, DType dtype) const override {
    if (is_float(asked.grid.kind))
      throw Error(ErrorKind::invalid_argument, "--lm-head-bits",
                  str("beside ", is_fp8(asked.grid) ? "FP8" : "NVFP4", " the head stays as it is"),
                  "leave it out");
    asked.grid.activation_bits = 16;
    return settle(asked, dtype);
  }

  std::string unfit_reason(int64_t n, int64_t k, const GridOptions& grid) const override {
    if (is_nvfp4(grid)) return nvfp4_parts::unfit_reason(k);
    if (grid.group_size != -1 && k % grid.group_size != 0)
      return str(k, " inputs are no multiple of the group size ", grid.group_size);
    if (is_packed(grid) && (k * grid.bits % 32 != 0 || (!grid.symmetric && n * grid.bits % 32 != 0)))
      return str(n, " outputs and ", k, " inputs of ", grid.bits, " bits do not fill words of 32");
    return "";
  }

  std::vector<PlannedTensor> parts(const LinearShape& shape, const GridOptions& grid) const override {
    const int64_t n = shape.out_features, k = shape.in_features, groups = groups_of(k, grid);
    std::vector<PlannedTensor> parts;
    if (is_nvfp4(grid)) {
      parts = nvfp4_parts::parts(shape);
    } else if (is_packed(grid)) {
      parts.push_back({"weight_packed", DType::i32, {n, words_of(k, grid.bits)}});
      if (!grid.symmetric)
        parts.push_back({"weight_zero_point", DType::i32, {words_of(n, grid.bits), groups}});
      parts.push_back({"weight_shape", DType::i64, {2}});
    } else {
      parts.push_back({"weight", is_fp8(grid) ? DType::f8_e4m3 : DType::i8, {n, k}});
    }
    if (!is_nvfp4(grid)) parts.push_back({"weight_scale", shape.dtype, {n, groups}});
    if (shape.has_bias) parts.push_back({"bias", shape.dtype, {n}});
    return parts;
  }

  const std::vector<std::string>& marks() const override {
    static const std::vector<std::string> kMarks{"weight_packed", "weight_scale", "weight_zero_point",
                                                 "weight_shape", "weight_global_scale"};
    return kMarks;
  }

  PackedParts pack(const QuantizedLinear& module, const PackSource& source,
                   const GridOptions& grid) const override {
    const int64_t shape[] = {module.codes.size(0), module.codes.size(1)};
    PackedParts parts;
    const at::ScalarType type = tensor::scalar_type(source.shape.dtype);
    if (source.bias.defined()) parts["bias"] = source.bias.to(type);
    if (is_nvfp4(grid)) {
      parts.merge(nvfp4_parts::pack(module));
      return parts;
    }
    parts["weight_scale"] = module.scale.to(type);
    if (!parts["weight_scale"].isfinite().all().item<bool>())
      throw Error(ErrorKind::numerical, source.name + ".weight_scale", "leaves the type of the weights",
                  "use a checkpoint in bfloat16 or float32");
    if (!is_packed(grid)) {
      parts["weight"] = is_fp8(grid) ? module.codes.view(at::kFloat8_e4m3fn) : module.codes;
      return parts;
    }
    const int offset = 1 << (module.bits - 1);
    parts["weight_packed"] = pack_bits(module.codes, module.bits, offset);
    if (module.zero.defined())
      parts["weight_zero_point"] = pack_bits(module.zero.t(), module.bits, offset).t().contiguous();
    parts["weight_shape"] = tensor::wrap(shape, {2}, at::kLong, nullptr).clone();
    return parts;
  }

  DecodedLinear unpack(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                       const std::string& name) const override {
    const QuantizedLinear module = codes(parts, n, k, grid, name);
    const at::Tensor bias = part(parts, "bias");
    if (bias.defined()) expect(parts, name, "bias", {at::kBFloat16, at::kHalf, at::kFloat}, {n});
    return {module.weight(), bias, 0};
  }

  QuantizedLinear codes(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                        const std::string& name) const override {
    if (is_nvfp4(grid)) return nvfp4_parts::codes(parts, n, k, name);
    if (const std::string reason = unfit_reason(n, k, grid); !reason.empty()) refuse_part(name, reason);
    const int64_t groups = groups_of(k, grid);
    QuantizedLinear module;
    module.bits = grid.bits;
    module.group_size = grid.group_size == -1 ? k : grid.group_size;
    const at::Tensor scale =
        expect(parts, name, "weight_scale", {at::kBFloat16, at::kHalf, at::kFloat}, {n, groups});
    module.scale = scale.to(at::kFloat);
    expect_finite(module.scale, name + ".weight_scale");
    const int offset = midpoint(grid);
    if (is_packed(grid)) {
      const at::Tensor words = expect(parts, name, "weight_packed", {at::kInt}, {n, words_of(k, grid.bits)});
      const at::Tensor shape = expect(parts, name, "weight_shape", {at::kLong, at::kInt}, {2}).to(at::kLong);
      if (shape.const_data_ptr<int64_t>()[0] != n || shape.const_data_ptr<int64_t>()[1] != k)
        refuse_part(name + ".weight_shape", str("says another shape than [", n, ", ", k, "]"));
      module.codes = unpack_bits(words, k, grid.bits, offset);
      if (!grid.symmetric) {
        const at::Tensor zeros =
            expect(parts, name, "weight_zero_point", {at::kInt}, {words_of(n, grid.bits), groups});
        module.zero = unpack_bits(zeros.t(), n, grid.bits, offset).t().contiguous();
      }
    } else if (is_fp8(grid)) {
      if (module.scale.le(0).any().item<bool>())
        refuse_part(name + ".weight_scale", "holds scales that are not positive");
      const at::Tensor values = expect(parts, name, "weight", {at::kFloat8_e4m3fn}, {n, k});
      module.e4m3 = true;
      module.codes = values.contiguous().view(at::kChar);
      if (module.codes.bitwise_and(0x7f).eq(0x7f).any().item<bool>())
        refuse_part(name + ".weight", "holds NaN");
    } else {
      module.codes = expect(parts, name, "weight", {at::kChar}, {n, k});
      if (grid.bits < 8 && module.codes.lt(-offset).logical_or(module.codes.ge(offset)).any().item<bool>())
        refuse_part(name + ".weight", str("holds codes beyond ", grid.bits, " bits"));
    }
    return module;
  }

  std::optional<LinearShape> shape_of(const Checkpoint& checkpoint, const std::string& name,
                                      const GridOptions& grid) const override {
    const std::string codes = name + (is_packed(grid) ? ".weight_packed" : ".weight");
    if (!checkpoint.contains(codes)) return std::nullopt;
    const std::vector<int64_t>& shape = checkpoint.tensor(codes).shape;
    if (shape.size() != 2 || shape[0] == 0 || shape[1] == 0) return std::nullopt;
    if (is_nvfp4(grid)) return LinearShape{shape[0], shape[1] * 2};
    return LinearShape{shape[0], is_packed(grid) ? shape[1] * 32 / grid.bits : shape[1]};
  }

  Json config(const QuantizationFields& fields) const override {
    Json config;
    const std::string kind = kind_of(fields.solve.grid);
    config["quant_method"] = name();
    config["format"] = kind;
    config["quantization_status"] = "compressed";
    Json& groups = config["config_groups"];
    const auto add = [&](const GridOptions& grid, const Json& targets) {
      const std::string key = str("group_", groups.size());
      groups[key] = group_fields(grid, targets);
      // Of several groups each says how its own weights are stored.
      if (kind_of(grid) != kind) config["format"] = "mixed-precision";
    };
    const std::vector<std::string> all = fields.linears();
    const auto targets = [&](const std::vector<std::string>& modules) {
      Json patterns = Json::array();
      for (const std::string& pattern : patterns_of(modules, all)) patterns.push_back("re:" + pattern);
      return patterns;
    };
    // The class stands for every module: beside other groups their loaders might take it first.
    const bool one = fields.own.empty() && !fields.head;
    if (one || !fields.usual.empty())
      add(fields.solve.grid, one ? Json::array({"Linear"}) : targets(fields.usual));
    for (const OwnSettings& some : fields.own) add(some.solve.grid, targets(some.modules));
    if (fields.head) add(fields.head->grid, Json::array({kHeadName}));
    // A tied head is a linear layer too, though no tensor has its name.
    Json& ignored = config["ignore"] = Json::array();
    if (!fields.head) ignored.push_back(kHeadName);
    for (const auto* names : {&fields.skipped, &fields.plain}) {
      for (const std::string& module : *names) {
        if (module != kHeadName) ignored.push_back(module);
      }
    }
    config["kv_cache_scheme"] = nullptr;
    return config;
  }

  std::optional<StoredFormat> read_config(const Json& fields, const std::string& where) const override {
    if (quantization_method(fields) != name()) return std::nullopt;
    const Json groups = fields.value("config_groups", Json());
    if (!groups.is_object() || groups.empty())
      throw Error(ErrorKind::unsupported, where, "quantization_config: config_groups: expected groups",
                  kRead);
    StoredFormat stored;
    for (const auto& [key, group] : groups.items()) {
      const GridOptions grid = read_group(group, fields, where, key);
      const Json targets = group.value("targets", Json());
      bool usual = groups.size() == 1;
      for (const Json& target : targets.is_array() ? targets : Json::array()) {
        if (!target.is_string()) continue;
        const auto text = target.get<std::string>();
        usual |= text == "Linear";
        if (text == "Linear") continue;
        const std::string pattern = text.starts_with("re:") ? text.substr(3) : exact_pattern(text);
        stored.own.emplace_back(ModulePattern(pattern, where + ": quantization_config: " + key),
                                ModuleFormat{this, grid});
      }
      // Without a group of all linear layers, the first one's.
      if (usual || stored.format == nullptr) stored.grid = grid;
      stored.format = this;
    }
    const auto names_head = [](const auto& own) { return own.first.matches(kHeadName); };
    stored.head = std::any_of(stored.own.begin(), stored.own.end(), names_head) &&
                  excluded_modules(fields, {kHeadName}, where).empty();
    return stored;
  }

 private:
  static SolveOptions settle_fp8(SolveOptions asked, DType dtype) {
    GridOptions& grid = asked.grid;
    const auto refuse = [](const char* option, const std::string& what) {
      throw Error(ErrorKind::invalid_argument, option, what + " is not what FP8 stores",
                  "FP8 has 8-bit floats with one scale per row; leave the option out");
    };
    if (grid.bits != 8) refuse("--bits", std::to_string(grid.bits));
    if (!grid.symmetric) refuse("--asym", "a grid with zero points");
    if (grid.group_size != -1) refuse("--group-size", std::to_string(grid.group_size));
    if (grid.mse != 0) refuse("--mse", "a searched scale");
    // The runtime rounds activations to FP8 too, a scale for each token, unless it is told not to.
    if (grid.activation_bits == 0) grid.activation_bits = 8;
    grid.scale_type = tensor::scalar_type(dtype);
    return asked;
  }

  static Json group_fields(const GridOptions& grid, const Json& targets) {
    const bool channel = grid.group_size == -1;
    Json weights = {{"num_bits", grid.bits},
                    {"type", is_fp8(grid) ? "float" : "int"},
                    {"symmetric", grid.symmetric},
                    {"strategy", channel ? "channel" : "group"},
                    {"dynamic", false}};
    if (!channel) weights["group_size"] = grid.group_size;
    if (is_nvfp4(grid)) weights = nvfp4_parts::weights_field();
    Json activations;
    if (grid.activation_bits == 8)
      activations = {{"num_bits", 8},
                     {"type", is_fp8(grid) ? "float" : "int"},
                     {"symmetric", true},
                     {"strategy", "token"},
                     {"dynamic", true}};
    return {{"targets", targets},
            {"weights", weights},
            {"input_activations", activations},
            {"output_activations", nullptr},
            {"format", kind_of(grid)}};
  }

  // One of config_groups.
  static GridOptions read_group(const Json& group, const Json& fields, const std::string& where,
                                const std::string& key) {
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::unsupported, where, "quantization_config: " + key + ": " + what, kRead);
    };
    if (!group.is_object() || !group.contains("weights") || !group.at("weights").is_object())
      refuse("the group has no weights");
    const Json& weights = group.at("weights");
    const auto is = [&](const char* field, const Json& value) {
      return weights.contains(field) && weights.at(field) == value;
    };
    const Json activations = group.value("input_activations", Json());
    const std::string kind = group.value("format", Json()).is_string() ? group.at("format").get<std::string>()
                                                                       : fields.value("format", "");
    if (nvfp4_parts::is_weights_field(weights)) {
      if (!activations.is_null()) refuse("input_activations: NVFP4 is read with activations as they come");
      const GridOptions grid = {.kind = GridKind::nvfp4, .group_size = 16, .mse = 0, .activation_bits = 16};
      if (kind != kind_of(grid)) refuse("format is '" + kind + "'");
      return grid;
    }
    GridOptions grid = {.kind = GridKind::integer};
    if (is("num_bits", 8) && is("type", "float")) grid.kind = GridKind::fp8;
    if (!is("num_bits", 4) && !is("num_bits", 8)) refuse("num_bits is neither 4 nor 8");
    if (!is_fp8(grid) && !is("type", "int")) refuse("weights are neither integers nor floats of 8 bits");
    grid.bits = weights.at("num_bits").get<int>();
    grid.symmetric = is("symmetric", true);
    if (is("strategy", "channel")) {
      grid.group_size = -1;
    } else if (is("strategy", "group") && weights.contains("group_size") &&
               weights.at("group_size").is_number_integer() && weights.at("group_size").get<int64_t>() > 0) {
      grid.group_size = weights.at("group_size").get<int64_t>();
    } else {
      refuse("strategy is neither channel nor group with its size");
    }
    if (is_fp8(grid) && (grid.group_size != -1 || !grid.symmetric))
      refuse("weights are floats of 8 bits with other scales than one per row");
    grid.activation_bits = activations.is_null() ? 16 : 8;
    if (!activations.is_null() &&
        (!activations.is_object() || activations.value("num_bits", 0) != 8 ||
         activations.value("type", "") != (is_fp8(grid) ? "float" : "int") ||
         activations.value("strategy", "") != "token" || !activations.value("symmetric", false) ||
         !activations.value("dynamic", Json(false)).is_boolean() || !activations.value("dynamic", false)))
      refuse("input_activations: expected none, or 8 bits, symmetric, dynamic by token");
    if (kind != kind_of(grid)) refuse("format is '" + kind + "'");
    return grid;
  }
};

}  // namespace

const LinearFormat& compressed_tensors_format() {
  static const CompressedTensors kFormat;
  return kFormat;
}

}  // namespace gramian
