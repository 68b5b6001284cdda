#include "formats/gguf/type_mix.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "formats/gguf/names.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

int64_t number(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.contains(key) && config.at(key).is_number_integer()) return config.at(key).get<int64_t>();
  }
  return 0;
}

int64_t layer_of(const std::string& name) {
  long long layer = 0;
  return std::sscanf(name.c_str(), "blk.%lld.", &layer) == 1 ? layer : 0;
}

// The first and last eighth of the layers, and every third one between.
bool stands_out(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

class Mixer {
 public:
  Mixer(const TypeMix& mix, const Json& config)
      : medium_(std::string(mix.name).ends_with("_m")),
        base_(mix.type),
        layers_(number(config, {"num_hidden_layers"})),
        experts_(number(config, {"num_local_experts", "num_experts", "n_routed_experts"})),
        // Llama 2 and 3 of 70 billion weights, whose heads share keys and values.
        shares_values_(config.value("model_type", Json()) == "llama" && layers_ == 80 &&
                       number(config, {"num_attention_heads"}) != number(config, {"num_key_value_heads"})) {}

  // `values`: matrices that make attention's values, of which this is number `value`.
  std::string type(const std::string& name, int64_t value, int64_t values) const {
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool low = base_ == "Q4_K";
    if (is("attn_v.") || is("attn_qkv.")) {
      if (experts_ == 8) return "Q8_0";
      std::string type = base_;
      if (medium_ && stands_out(value, values)) type = "Q6_K";
      if (!medium_ && low && value < 4) type = "Q5_K";
      return shares_values_ && type == "Q4_K" ? "Q5_K" : type;
    }
    if (is("attn_k.") && experts_ == 8) return "Q8_0";
    if (is("attn_output.") && experts_ == 8 && low) return "Q5_K";
    if (is("ffn_down")) {
      const int64_t layer = layer_of(name);
      if (medium_ && stands_out(layer, layers_)) return "Q6_K";
      if (!medium_ && low && layer < layers_ / 8) return "Q5_K";
    }
    return base_;
  }

 private:
  bool medium_;
  std::string base_;
  int64_t layers_, experts_;
  bool shares_values_;
};

}  // namespace

const std::vector<TypeMix>& type_mixes() {
  static const std::vector<TypeMix> kMixes{
      {"q4_k_s", "Q4_K", 14}, {"q4_k_m", "Q4_K", 15}, {"q5_k_s", "Q5_K", 16}, {"q5_k_m", "Q5_K", 17}};
  return kMixes;
}

const TypeMix* find_type_mix(const std::string& name) {
  const std::string lower = lower_case(name);
  const auto& mixes = type_mixes();
  const auto found =
      std::find_if(mixes.begin(), mixes.end(), [&](const TypeMix& mix) { return mix.name == lower; });
  return found == mixes.end() ? nullptr : &*found;
}

std::map<std::string, const Codec*> mixed_types(const TypeMix& mix, const std::vector<std::string>& names,
                                                const Json& config) {
  const std::string model_type = config.value("model_type", Json("")).get<std::string>();
  std::vector<std::pair<std::string, std::string>> mapped;  // checkpoint's, file's
  std::vector<std::string> values;
  for (const std::string& name : names) {
    const auto found = mapped_name(name, model_type);
    if (!found) continue;
    mapped.emplace_back(name, found->name);
    const bool value = found->name.find("attn_v.") != std::string::npos ||
                       found->name.find("attn_qkv.") != std::string::npos;
    if (value) values.push_back(found->name);
  }
  const Mixer mixer(mix, config);
  std::map<std::string, const Codec*> types;
  for (const auto& [name, in_file] : mapped) {
    const auto place = std::find(values.begin(), values.end(), in_file) - values.begin();
    types[name] = find_codec(mixer.type(in_file, place, static_cast<int64_t>(values.size())));
  }
  return types;
}

}  // namespace gramian::gguf
