#include "formats/gptq_format.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/bit_stream.h"
#include "formats/module_patterns.h"
#include "formats/part_check.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

bool is_known(int64_t bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; }

class GptqFormat final : public LinearFormat {
 public:
  explicit GptqFormat(gptq::Version version) : version_(version) {}

  const char* name() const override { return version_ == gptq::Version::v1 ? "gptq" : "gptq_v2"; }
  const char* summary() const override {
    return version_ == gptq::Version::v1 ? "GPTQ tensors that every loader reads (zero points less one)"
                                         : "GPTQ tensors with plain zero points (vLLM, SGLang, GPT-QModel)";
  }

  SolveOptions settle(SolveOptions asked, DType) const override {
    if (!is_known(asked.grid.bits))
      throw Error(ErrorKind::invalid_argument, "--bits", std::to_string(asked.grid.bits), "use 2, 3, 4 or 8");
    if (asked.grid.activation_bits != 16 && asked.grid.activation_bits != 0)
      throw Error(ErrorKind::invalid_argument, "--activation-bits",
                  str(asked.grid.activation_bits, ": GPTQ's runtimes leave activations as they are"),
                  "use --format compressed-tensors for 8");
    asked.grid.activation_bits = 16;
    asked.grid.kind = GridKind::integer;
    if (!asked.grid.unrounded_scales) asked.grid.scale_type = at::kHalf;
    return asked;
  }

  std::string unfit_reason(int64_t n, int64_t k, const GridOptions&) const override {
    return gptq::unfit_reason(n, k);
  }

  std::vector<PlannedTensor> parts(const LinearShape& shape, const GridOptions& grid) const override {
    const int64_t n = shape.out_features, k = shape.in_features;
    const int64_t groups = grid.group_size == -1 ? 1 : (k + grid.group_size - 1) / grid.group_size;
    std::vector<PlannedTensor> parts{{"qweight", DType::i32, {words_of(k, grid.bits), n}},
                                     {"qzeros", DType::i32, {groups, words_of(n, grid.bits)}},
                                     {"scales", DType::f16, {groups, n}},
                                     {"g_idx", DType::i32, {k}}};
    if (shape.has_bias) parts.push_back({"bias", DType::f16, {n}});
    return parts;
  }

  const std::vector<std::string>& marks() const override {
    static const std::vector<std::string> kMarks{"qweight", "qzeros", "g_idx", "scales"};
    return kMarks;
  }

  PackedParts pack(const QuantizedLinear& module, const PackSource& source,
                   const GridOptions&) const override {
    const gptq::Packed packed = gptq::pack(module, source.bias, version_, source.name);
    PackedParts parts{{"qweight", packed.qweight},
                      {"qzeros", packed.qzeros},
                      {"scales", packed.scales},
                      {"g_idx", packed.g_idx}};
    if (packed.bias.defined()) parts["bias"] = packed.bias;
    return parts;
  }

  DecodedLinear unpack(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                       const std::string& name) const override {
    const gptq::Packed packed = {part(parts, "qweight"), part(parts, "qzeros"), part(parts, "scales"),
                                 part(parts, "g_idx"), part(parts, "bias")};
    if (packed.bias.defined())
      expect_part(packed.bias, name + ".bias", {at::kHalf, at::kBFloat16, at::kFloat}, {n});
    return {gptq::unpack(packed, grid.bits, version_, n, k, name).weight(), packed.bias, 0};
  }

  std::optional<LinearShape> shape_of(const Checkpoint& checkpoint, const std::string& name,
                                      const GridOptions&) const override {
    if (!checkpoint.contains(name + ".qweight") || !checkpoint.contains(name + ".g_idx")) return std::nullopt;
    const std::vector<int64_t>& codes = checkpoint.tensor(name + ".qweight").shape;
    const std::vector<int64_t>& index = checkpoint.tensor(name + ".g_idx").shape;
    if (codes.size() != 2 || index.size() != 1 || codes[1] == 0 || index[0] == 0) return std::nullopt;
    return LinearShape{codes[1], index[0]};
  }

  Json config(const QuantizationFields& fields) const override {
    const SolveOptions& solve = fields.solve;
    Json config;
    config["bits"] = solve.grid.bits;
    config["group_size"] = solve.grid.group_size;
    // Where groups are natural ones, loaders need not know in which order columns were solved.
    config["desc_act"] =
        solve.order == ColumnOrder::activation && !solve.static_groups && solve.grid.group_size != -1;
    config["sym"] = solve.grid.symmetric;
    config["lm_head"] = false;
    for (const char* key : {"method", "quant_method"}) config[key] = "gptq";
    for (const char* key : {"format", "checkpoint_format"}) config[key] = name();
    config["pack_dtype"] = "int32";
    for (const std::string& module : fields.skipped)
      config["dynamic"]["-:" + exact_pattern(module)] = Json::object();
    Json& meta = config["meta"];
    meta["quantizer"] = {std::string("gramian:") + GRAMIAN_VERSION};
    meta["solver"] = fields.method;
    meta["mse"] = solve.grid.mse;
    if (fields.method != "rtn") {
      meta["damp_percent"] = solve.damp_percent;
      meta["damp_auto_increment"] = solve.damp_step;
      meta["static_groups"] = solve.static_groups;
      meta["dedup_shared_inputs"] = fields.shared_inputs;
      meta["act_group_aware"] = solve.order == ColumnOrder::group_aware;
    }
    return config;
  }

  std::optional<GridOptions> read_config(const Json& fields, const std::string& where) const override {
    if (quantization_method(fields) != "gptq") return std::nullopt;
    std::string version = "gptq";
    for (const char* key : {"checkpoint_format", "format"}) {
      if (fields.contains(key) && fields.at(key).is_string()) version = fields.at(key).get<std::string>();
    }
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::unsupported, where, "quantization_config: " + what,
                  "GPTQ with 2, 3, 4 or 8 bits in versions 1 and 2 is read");
    };
    if (version != "gptq" && version != "gptq_v2") refuse("format '" + version + "' is not read");
    if (version != name()) return std::nullopt;
    if (fields.value("lm_head", false)) refuse("lm_head is true");
    GridOptions grid = {.kind = GridKind::integer, .activation_bits = 16};
    const auto integer = [&](std::initializer_list<const char*> keys, int64_t missing) {
      for (const char* key : keys) {
        if (!fields.contains(key) || fields.at(key).is_null()) continue;
        if (!fields.at(key).is_number_integer()) refuse(str(key, " is ", fields.at(key).dump()));
        return fields.at(key).get<int64_t>();
      }
      return missing;
    };
    const int64_t bits = integer({"bits", "wbits", "w_bit"}, 4);
    if (!is_known(bits)) refuse(str("bits is ", bits));
    grid.bits = static_cast<int>(bits);
    grid.group_size = integer({"group_size", "q_group_size"}, 128);
    if (grid.group_size != -1 && grid.group_size <= 0) refuse(str("group_size is ", grid.group_size));
    const Json symmetric = fields.value("sym", Json(true));
    if (!symmetric.is_boolean()) refuse("sym is " + symmetric.dump());
    grid.symmetric = symmetric.get<bool>();
    if (fields.contains("dynamic") && fields.at("dynamic").is_object()) {
      for (const auto& [pattern, overrides] : fields.at("dynamic").items()) {
        if (!pattern.starts_with("-:") && !overrides.empty())
          refuse("dynamic gives some modules settings of their own: " + pattern);
      }
    }
    return grid;
  }

 private:
  gptq::Version version_;
};

}  // namespace

const LinearFormat& gptq_format() {
  static const GptqFormat kFormat(gptq::Version::v1);
  return kFormat;
}

const LinearFormat& gptq_v2_format() {
  static const GptqFormat kFormat(gptq::Version::v2);
  return kFormat;
}

}  // namespace gramian
