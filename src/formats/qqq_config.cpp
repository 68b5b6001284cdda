#include "formats/qqq_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/encoded_tensor.h"
#include "formats/tokenizer/regex.h"

namespace gramian::qqq {
namespace {

// A PCRE pattern that matches exactly `name`.
std::string exact_pattern(const std::string& name) {
  std::string pattern = "-:^";
  for (const char c : name) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

// Whether `part` is the whole `name` or some of its parts between dots.
bool names_part(const std::string& name, const std::string& part) {
  return !part.empty() && ("." + name + ".").find("." + part + ".") != std::string::npos;
}

}  // namespace

nlohmann::ordered_json quantization_config(const ConfigFields& fields) {
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
    config["dynamic"][exact_pattern(name)] = nlohmann::ordered_json::object();
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

std::optional<int64_t> read_group_size(const nlohmann::ordered_json& config, const std::string& where) {
  if (!config.contains("quantization_config") || config.at("quantization_config").is_null())
    return std::nullopt;
  if (is_decoded_source(config, where)) return std::nullopt;
  const auto& fields = config.at("quantization_config");
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::unsupported, where, "quantization_config: " + what,
                "QQQ with 4 bits, symmetric, is read");
  };
  if (!fields.is_object()) refuse("expected an object");
  std::string method;
  for (const char* key : {"quant_method", "method", "format", "checkpoint_format"}) {
    if (method.empty() && fields.contains(key) && fields.at(key).is_string())
      method = fields.at(key).get<std::string>();
  }
  if (method != "qqq") refuse("method '" + method + "' is not read yet");
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

std::set<std::string> excluded_modules(const nlohmann::ordered_json& fields,
                                       const std::vector<std::string>& modules, const std::string& where) {
  std::set<std::string> excluded;
  const auto exclude = [&](const auto& matches) {
    for (const std::string& module : modules) {
      if (matches(module)) excluded.insert(module);
    }
  };
  if (!fields.is_object()) return excluded;
  if (fields.contains("dynamic") && fields.at("dynamic").is_object()) {
    for (const auto& [pattern, overrides] : fields.at("dynamic").items()) {
      if (!pattern.starts_with("-:")) continue;
      const tokenizer::Regex regex(str("\\A(?:", pattern.substr(2), ")"),
                                   where + ": quantization_config: dynamic");
      exclude([&](const std::string& module) { return regex.matches_somewhere(module); });
    }
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore"}) {
    if (!fields.contains(key) || !fields.at(key).is_array()) continue;
    for (const auto& part : fields.at(key)) {
      if (part.is_string()) exclude([&](const std::string& module) { return names_part(module, part); });
    }
  }
  return excluded;
}

}  // namespace gramian::qqq
