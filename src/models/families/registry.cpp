#include "models/families/registry.h"

#include <algorithm>

#include "base/format.h"

namespace gramian {
namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies{
      llama(),        llama4_text(),
      mistral(),      mixtral(),
      qwen2(),        qwen2_moe(),
      qwen2_vl(),     qwen3(),
      qwen3_moe(),    gemma(),
      gemma2(),       gemma3_text(),
      deepseek_v3(),  glm4_moe(),
      gpt_oss(),      granite(),
      olmo2(),        stablelm(),
      cohere(),       cohere2(),
      phi3(),         kimi_linear(),
      olmo_hybrid(),  qwen3_next(),
      qwen3_5_text(), qwen3_5_moe_text(),
      glm5_next(),    qwen4_exp_text(),
  };
  return kFamilies;
}

}  // namespace

std::vector<const Family*> all_families() {
  std::vector<const Family*> all;
  for (const Family& family : families()) all.push_back(&family);
  return all;
}

const Family& find_family(const ConfigReader& file) {
  const ConfigReader config = text_config(file);
  const std::string type = config.text_or("model_type", "");
  std::string architecture;
  if (config.has("architectures") && config.json().at("architectures").is_array() &&
      !config.json().at("architectures").empty() && config.json().at("architectures")[0].is_string()) {
    architecture = config.json().at("architectures")[0].get<std::string>();
  }
  for (const Family& family : families()) {
    const auto& others = family.other_types;
    if (family.model_type == type || std::find(others.begin(), others.end(), type) != others.end() ||
        (type.empty() && family.architecture == architecture))
      return family;
  }
  if (type.empty() && architecture.empty()) config.fail("model_type", "is missing");
  throw Error(ErrorKind::unsupported, config.where(),
              str("model type '", type.empty() ? architecture : type, "' is not built"),
              "known types: " + listed(families(), [](const Family& family) { return family.model_type; }));
}

}  // namespace gramian
