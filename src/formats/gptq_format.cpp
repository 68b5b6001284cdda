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

constexpr const char* kRead = "GPTQ with 2, 3, 4 or 8 bits in versions 1 and 2 is read";

// The grid that `fields`, a configuration or one of its rules, give; what they do not name is `base`'s. `place` begins messages.
GridOptions read_grid(const Json& fields, const GridOptions& base, const std::string& where,
                      const std::string& place) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::unsupported, where, "quantization_config: " + place + what, kRead);
  };
  if (!fields.is_object()) refuse("expected an object");
  const auto integer = [&](std::initializer_list<const char*> keys, int64_t missing) {
    for (const char* key : keys) {
      if (!fields.contains(key) || fields.at(key).is_null()) continue;
      if (!fields.at(key).is_number_integer()) refuse(str(key, " is ", fields.at(key).dump()));
      return fields.at(key).get<int64_t>();
    }
    return missing;
  };
  GridOptions grid = base;
  const int64_t bits = integer({"bits", "wbits", "w_bit"}, base.bits);
  if (!is_known(bits)) refuse(str("bits is ", bits));
  grid.bits = static_cast<int>(bits);
  grid.group_size = integer({"group_size", "q_group_size"}, base.group_size);
  if (grid.group_size != -1 && grid.group_size <= 0) refuse(str("group_size is ", grid.group_size));
  const Json symmetric = fields.value("sym", Json(base.symmetric));
  if (!symmetric.is_boolean()) refuse("sym is " + symmetric.dump());
  grid.symmetric = symmetric.get<bool>();
  return grid;
}

class GptqFormat final : public LinearFormat {
 public:
  explicit GptqFormat(gptq::Version version) : version_(version) {}

  const char* name() const override { return version_ == gptq::Version::v1 ? "gptq" : "gptq_v2"; }
  const char* summary() const override {
    return version_ == gptq::Version::v1 ? "GPTQ tensors that every loader reads (zero points less one)"
                                         : "GPTQ tensors with plain zero points (vLLM, SGLang, GPT-QModel)";
  }

  SolveOptions settle(SolveOptions asked, DType) const override {
    refuse_float_grid(*this, asked.grid);
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

  QuantizedLinear codes(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                        const std::string& name) const override {
    return gptq::unpack(
        {part(parts, "qweight"), part(parts, "qzeros"), part(parts, "scales"), part(parts, "g_idx"), {}},
        grid.bits, version_, n, k, name);
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
    config["desc_act"] = stores_order(solve);
    config["sym"] = solve.grid.symmetric;
    config["lm_head"] = fields.head.has_value();
    for (const char* key : {"method", "quant_method"}) config[key] = "gptq";
    for (const char* key : {"format", "checkpoint_format"}) config[key] = name();
    config["pack_dtype"] = "int32";
    add_dynamic(config, fields);
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

  // Negative rules stand first, as every reader takes them first. A rule has what differs from the fields above it.
  static void add_dynamic(Json& config, const QuantizationFields& fields) {
    const std::vector<std::string> all = fields.linears();
    for (const std::string& pattern : patterns_of(fields.skipped, all))
      config["dynamic"]["-:" + pattern] = Json::object();
    const auto add = [&](const std::string& pattern, const SolveOptions& solve) {
      const GridOptions &grid = solve.grid, &usual = fields.solve.grid;
      Json& rule = config["dynamic"]["+:" + pattern] = Json::object();
      if (grid.bits != usual.bits) rule["bits"] = grid.bits;
      if (grid.group_size != usual.group_size) rule["group_size"] = grid.group_size;
      if (grid.symmetric != usual.symmetric) rule["sym"] = grid.symmetric;
      if (stores_order(solve) != stores_order(fields.solve)) rule["desc_act"] = stores_order(solve);
    };
    for (const OwnSettings& some : fields.own) {
      for (const std::string& pattern : patterns_of(some.modules, all)) add(pattern, some.solve);
    }
    if (fields.head) add(exact_pattern(kHeadName), *fields.head);
  }

  std::optional<StoredFormat> read_config(const Json& fields, const std::string& where) const override {
    if (quantization_method(fields) != "gptq") return std::nullopt;
    std::string version = "gptq";
    for (const char* key : {"checkpoint_format", "format"}) {
      if (fields.contains(key) && fields.at(key).is_string()) version = fields.at(key).get<std::string>();
    }
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::unsupported, where, "quantization_config: " + what, kRead);
    };
    if (version != "gptq" && version != "gptq_v2") refuse("format '" + version + "' is not read");
    if (version != name()) return std::nullopt;
    StoredFormat stored;
    stored.format = this;
    stored.grid = read_grid(fields, {.kind = GridKind::integer, .activation_bits = 16}, where, "");
    const Json head = fields.value("lm_head", Json(false));
    if (!head.is_boolean()) refuse("lm_head is " + head.dump());
    stored.head = head.get<bool>();
    read_dynamic(
        fields, where,
        [&](const Json& overrides, const std::string& pattern) {
          return ModuleFormat{this, read_grid(overrides, stored.grid, where, "dynamic: " + pattern + ": ")};
        },
        stored);
    return stored;
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
