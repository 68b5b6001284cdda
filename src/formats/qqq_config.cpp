#include "formats/qqq_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/module_patterns.h"
#include "formats/qqq_format.h"

namespace gramian::qqq {
namespace {

// The head is no QQQ module: docs/formats.md says how it is stored.
constexpr const char* kHeadFields = "lm_head_config";
nlohmann::ordered_json head_fields() {
  return {{"format", "int-quantized"}, {"bits", 8}, {"group_size", -1}, {"sym", true}};
}

}  // namespace

GridOptions head_grid() {
  return {.kind = GridKind::integer, .bits = 8, .group_size = -1, .activation_bits = 8};
}

nlohmann::ordered_json quantization_config(const QuantizationFields& fields) {
  nlohmann::ordered_json config;
  config["bits"] = 4;
  config["wbits"] = 4;
  config["group_size"] = fields.solve.grid.group_size;
  config["desc_act"] = false;
  config["sym"] = true;
  config["lm_head"] = fields.head.has_value();
  if (fields.head) config[kHeadFields] = head_fields();
  for (const char* key : {"method", "quant_method", "format", "checkpoint_format"}) config[key] = "qqq";
  config["pack_dtype"] = "int32";
  const std::vector<std::string> all = fields.linears();
  for (const std::string& pattern : patterns_of(fields.skipped, all))
    config["dynamic"]["-:" + pattern] = nlohmann::ordered_json::object();
  for (const OwnSettings& some : fields.own) {
    for (const std::string& pattern : patterns_of(some.modules, all))
      config["dynamic"]["+:" + pattern] = {{"group_size", some.solve.grid.group_size}};
  }
  nlohmann::ordered_json& meta = config["meta"];
  meta["quantizer"] = {std::string("gramian:") + GRAMIAN_VERSION};
  meta["solver"] = fields.method;
  meta["mse"] = fields.solve.grid.mse;
  if (fields.method != "rtn") {
    meta["damp_percent"] = fields.solve.damp_percent;
    meta["damp_auto_increment"] = fields.solve.damp_step;
    meta["static_groups"] = fields.solve.static_groups;
    meta["dedup_shared_inputs"] = fields.shared_inputs;
  }
  return config;
}

std::optional<StoredFormat> read_config(const nlohmann::ordered_json& fields, const std::string& where) {
  if (quantization_method(fields) != "qqq") return std::nullopt;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::unsupported, where, "quantization_config: " + what,
                "QQQ with 4 bits, symmetric, is read");
  };
  const auto grid_of = [&](const nlohmann::ordered_json& settings, int64_t missing,
                           const std::string& place) {
    if (!settings.is_object()) refuse(place + "expected an object");
    for (const char* key : {"bits", "wbits"}) {
      if (settings.contains(key) && settings.at(key) != 4)
        refuse(place + key + " is " + settings.at(key).dump());
    }
    if (settings.contains("desc_act") && settings.at("desc_act") == true) refuse(place + "desc_act is true");
    if (settings.contains("sym") && settings.at("sym") == false) refuse(place + "sym is false");
    const auto group = settings.value("group_size", nlohmann::ordered_json(missing));
    if (group != -1 && group != 128) refuse(place + "group_size is " + group.dump() + ", expected -1 or 128");
    return GridOptions{.group_size = group.get<int64_t>(), .activation_bits = 8};
  };
  StoredFormat stored;
  stored.format = &qqq_format();
  stored.grid = grid_of(fields, 128, "");
  stored.head = fields.value("lm_head", nlohmann::ordered_json(false)) == true;
  if (stored.head && fields.contains(kHeadFields)) {
    if (fields.at(kHeadFields) != head_fields())
      refuse(std::string(kHeadFields) + " is not " + head_fields().dump());
    stored.own.emplace_back(ModulePattern(exact_pattern(kHeadName), where),
                            ModuleFormat{&qqq_format().head_format(), head_grid()});
  }
  read_dynamic(
      fields, where,
      [&](const nlohmann::ordered_json& overrides, const std::string& pattern) {
        return ModuleFormat{&qqq_format(),
                            grid_of(overrides, stored.grid.group_size, "dynamic: " + pattern + ": ")};
      },
      stored);
  return stored;
}

}  // namespace gramian::qqq
