#include "formats/qqq_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/module_patterns.h"

namespace gramian::qqq {

nlohmann::ordered_json quantization_config(const QuantizationFields& fields) {
  nlohmann::ordered_json config;
  config["bits"] = 4;
  config["wbits"] = 4;
  config["group_size"] = fields.solve.grid.group_size;
  config["desc_act"] = false;
  config["sym"] = true;
  config["lm_head"] = false;
  for (const char* key : {"method", "quant_method", "format", "checkpoint_format"}) config[key] = "qqq";
  config["pack_dtype"] = "int32";
  for (const std::string& name : fields.skipped)
    config["dynamic"]["-:" + exact_pattern(name)] = nlohmann::ordered_json::object();
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

std::optional<int64_t> read_group_size(const nlohmann::ordered_json& fields, const std::string& where) {
  if (quantization_method(fields) != "qqq") return std::nullopt;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::unsupported, where, "quantization_config: " + what,
                "QQQ with 4 bits, symmetric, is read");
  };
  for (const char* key : {"bits", "wbits"}) {
    if (fields.contains(key) && fields.at(key) != 4)
      refuse(std::string(key) + " is " + fields.at(key).dump());
  }
  if (fields.contains("desc_act") && fields.at("desc_act") == true) refuse("desc_act is true");
  if (fields.contains("sym") && fields.at("sym") == false) refuse("sym is false");
  const auto& group = fields.contains("group_size") ? fields.at("group_size") : nlohmann::ordered_json(128);
  if (group != -1 && group != 128) refuse("group_size is " + group.dump() + ", expected -1 or 128");
  return group.get<int64_t>();
}

}  // namespace gramian::qqq
