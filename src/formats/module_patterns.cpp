#include "formats/module_patterns.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/tokenizer/regex.h"

namespace gramian {
namespace {

// Whether `part` is the whole `name` or some of its parts between dots.
bool names_part(const std::string& name, const std::string& part) {
  return !part.empty() && ("." + name + ".").find("." + part + ".") != std::string::npos;
}

}  // namespace

std::string exact_pattern(const std::string& name) {
  std::string pattern = "^";
  for (const char c : name) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
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
  const auto exclude_matches = [&](const std::string& pattern, const char* key) {
    const tokenizer::Regex regex("\\A(?:" + pattern + ")", where + ": quantization_config: " + key);
    exclude([&](const std::string& module) { return regex.matches_somewhere(module); });
  };
  if (fields.contains("dynamic") && fields.at("dynamic").is_object()) {
    for (const auto& [pattern, overrides] : fields.at("dynamic").items()) {
      if (pattern.starts_with("-:")) exclude_matches(pattern.substr(2), "dynamic");
    }
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore"}) {
    if (!fields.contains(key) || !fields.at(key).is_array()) continue;
    for (const auto& part : fields.at(key)) {
      if (!part.is_string()) continue;
      const auto text = part.get<std::string>();
      if (text.starts_with("re:")) {
        exclude_matches(text.substr(3), key);
      } else {
        exclude([&](const std::string& module) { return names_part(module, text); });
      }
    }
  }
  return excluded;
}

}  // namespace gramian
