#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/convert.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

struct Known {
  const char* model_type;
  const char* architecture;
};
constexpr Known kKnown[] = {{"llama", "llama"}, {"mistral", "llama"}, {"mixtral", "llama"},
                            {"qwen2", "qwen2"}, {"qwen3", "qwen3"},   {"qwen3_moe", "qwen3moe"}};

// Values of config.json by key, checked.
class Config {
 public:
  Config(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  Config inside(const char* key) const { return {json_.at(key), where_ + " " + key}; }
  uint32_t integer(const char* key) const {
    const int64_t value = has(key) && json_.at(key).is_number_integer() ? json_.at(key).get<int64_t>() : -1;
    if (value < 0 || value > std::numeric_limits<uint32_t>::max()) refuse(key, "a whole number");
    return static_cast<uint32_t>(value);
  }
  float number(const char* key) const {
    if (!has(key) || !json_.at(key).is_number()) refuse(key, "a number");
    return json_.at(key).get<float>();
  }
  std::string text(const char* key) const {
    if (!has(key) || !json_.at(key).is_string()) refuse(key, "a text");
    return json_.at(key).get<std::string>();
  }
  [[noreturn]] void refuse(const char* key, const char* expected) const {
    throw Error(ErrorKind::corrupt_data, where_, str("expected ", expected, " under ", quote_name(key)),
                "take config.json from the model's publisher");
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

void add_rope(const Config& config, const std::string& prefix, Metadata& metadata) {
  const bool newer = config.has("rope_parameters");
  const Config base = newer ? config.inside("rope_parameters") : config;
  metadata.set(prefix + "rope.freq_base", base.has("rope_theta") ? base.number("rope_theta") : 10000.0f);
  if (!newer && !config.has("rope_scaling")) return;
  const Config scaling = config.inside(newer ? "rope_parameters" : "rope_scaling");
  const std::string type = scaling.has("rope_type") ? scaling.text("rope_type")
                           : scaling.has("type")    ? scaling.text("type")
                                                    : "default";
  if (type == "default") return;
  if (type != "linear" && type != "yarn") {
    throw Error(ErrorKind::unsupported, scaling.where(), str("rotary scaling ", quote_name(type)),
                "convert a model with linear, yarn or no rotary scaling");
  }
  metadata.set(prefix + "rope.scaling.type", type);
  metadata.set(prefix + "rope.scaling.factor", scaling.number("factor"));
  if (scaling.has("original_max_position_embeddings")) {
    metadata.set(prefix + "rope.scaling.original_context_length",
                 scaling.integer("original_max_position_embeddings"));
  }
}

void add_experts(const Config& config, const std::string& prefix, Metadata& metadata) {
  const char* count = config.has("num_experts") ? "num_experts" : "num_local_experts";
  if (!config.has(count)) return;
  metadata.set(prefix + "expert_count", config.integer(count));
  metadata.set(prefix + "expert_used_count", config.integer("num_experts_per_tok"));
  if (config.has("moe_intermediate_size"))
    metadata.set(prefix + "expert_feed_forward_length", config.integer("moe_intermediate_size"));
}

}  // namespace

std::string architecture(const Json& config, const std::string& where) {
  const std::string type = Config(config, where).text("model_type");
  for (const Known& one : kKnown) {
    if (type == one.model_type) return one.architecture;
  }
  throw Error(ErrorKind::unsupported, where,
              str("models of type ", quote_name(type), " cannot be written as GGUF"),
              "convert one of " + listed(kKnown, [](const Known& one) { return one.model_type; }));
}

Metadata model_metadata(const Json& json, const std::string& where) {
  const Config config(json, where);
  const std::string name = architecture(json, where), prefix = name + ".";
  Metadata metadata(where);
  metadata.set("general.architecture", name);
  metadata.set("general.type", std::string("model"));
  const uint32_t hidden = config.integer("hidden_size"), heads = config.integer("num_attention_heads");
  if (heads == 0) config.refuse("num_attention_heads", "a whole number above 0");
  const uint32_t head = config.has("head_dim") ? config.integer("head_dim") : hidden / heads;
  metadata.set(prefix + "context_length", config.integer("max_position_embeddings"));
  metadata.set(prefix + "embedding_length", hidden);
  metadata.set(prefix + "block_count", config.integer("num_hidden_layers"));
  metadata.set(prefix + "feed_forward_length", config.integer("intermediate_size"));
  metadata.set(prefix + "attention.head_count", heads);
  metadata.set(prefix + "attention.head_count_kv",
               config.has("num_key_value_heads") ? config.integer("num_key_value_heads") : heads);
  metadata.set(prefix + "attention.layer_norm_rms_epsilon", config.number("rms_norm_eps"));
  if (head * uint64_t{heads} != hidden || name.starts_with("qwen3")) {
    metadata.set(prefix + "attention.key_length", head);
    metadata.set(prefix + "attention.value_length", head);
  }
  if (name == "llama") metadata.set(prefix + "rope.dimension_count", head);
  add_rope(config, prefix, metadata);
  add_experts(config, prefix, metadata);
  metadata.set(prefix + "vocab_size", config.integer("vocab_size"));
  return metadata;
}

}  // namespace gramian::gguf
