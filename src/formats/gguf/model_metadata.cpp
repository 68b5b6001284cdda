#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/convert.h"
#include "formats/gguf/families.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

// Values of config.json by key, checked.
class Config {
 public:
  Config(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  bool missing(const char* key) const { return !json_.contains(key); }
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
  Json value(const char* key) const { return json_.value(key, Json()); }
  [[noreturn]] void refuse(const char* key, const char* expected) const {
    throw Error(ErrorKind::corrupt_data, where_, str("expected ", expected, " under ", quote_name(key)),
                "take config.json from the model's publisher");
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

// `scaling`: the object that tells it; `config`: the whole.
void add_scaling(const Config& scaling, const Config& config, const std::string& prefix, Metadata& metadata) {
  const std::string type = scaling.has("rope_type") ? scaling.text("rope_type")
                           : scaling.has("type")    ? scaling.text("type")
                                                    : "default";
  if (type == "default") return;
  if (type == "llama3") return;  // its factors are a tensor
  if (type == "longrope") {
    const uint32_t original =
        config.integer(config.has("original_max_position_embeddings") ? "original_max_position_embeddings"
                                                                      : "max_position_embeddings");
    metadata.set(prefix + "rope.scaling.original_context_length", original);
    const double ratio = config.integer("max_position_embeddings") / static_cast<double>(original);
    const double attention =
        scaling.has("attention_factor") ? static_cast<double>(scaling.number("attention_factor"))
        : ratio <= 1                    ? 1.0
                     : std::sqrt(1 + std::log(ratio) / std::log(static_cast<double>(original)));
    metadata.set(prefix + "rope.scaling.attn_factor", static_cast<float>(attention));
    return;
  }
  if (type != "linear" && type != "yarn") {
    throw Error(ErrorKind::unsupported, scaling.where(), str("rotary scaling ", quote_name(type)),
                "convert a model with linear, yarn, llama3, longrope or no rotary scaling");
  }
  metadata.set(prefix + "rope.scaling.type", type);
  metadata.set(prefix + "rope.scaling.factor", scaling.number("factor"));
  if (scaling.has("original_max_position_embeddings")) {
    metadata.set(prefix + "rope.scaling.original_context_length",
                 scaling.integer("original_max_position_embeddings"));
  }
}

void add_rope(const Config& config, const std::string& prefix, Metadata& metadata) {
  const bool newer = config.has("rope_parameters");
  const Config base = newer ? config.inside("rope_parameters") : config;
  metadata.set(prefix + "rope.freq_base", base.has("rope_theta") ? base.number("rope_theta") : 10000.0f);
  if (newer || config.has("rope_scaling"))
    add_scaling(config.inside(newer ? "rope_parameters" : "rope_scaling"), config, prefix, metadata);
}

// The entries of a head that turn. Newer configurations say it among the rotary parameters.
uint32_t rotary_width(const Config& config, uint32_t head) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (!config.has(kKey))
    return config.has("rope_parameters") ? rotary_width(config.inside("rope_parameters"), head) : head;
  return static_cast<uint32_t>(static_cast<double>(head) * static_cast<double>(config.number(kKey)));
}

void add_window(const Config& config, const std::string& prefix, Metadata& metadata) {
  if (config.has("sliding_window"))
    metadata.set(prefix + "attention.sliding_window", config.integer("sliding_window"));
}

// Full layers have the keys; the base of sliding ones is a number that readers know.
void add_gemma3_rope(const Config& config, const std::string& prefix, Metadata& metadata) {
  const auto refuse_base = [&](const Config& where, float base) {
    if (base == 10000.0f) return;
    throw Error(ErrorKind::unsupported, where.where(), str("a rotary base of ", base, " in sliding layers"),
                "convert a model with 10000 there");
  };
  if (!config.has("rope_parameters")) {
    if (config.has("rope_local_base_freq")) refuse_base(config, config.number("rope_local_base_freq"));
    metadata.set(prefix + "rope.freq_base",
                 config.has("rope_theta") ? config.number("rope_theta") : 1000000.0f);
    if (config.has("rope_scaling")) add_scaling(config.inside("rope_scaling"), config, prefix, metadata);
    return;
  }
  const Config all = config.inside("rope_parameters");
  if (!all.has("full_attention") || !all.has("sliding_attention"))
    all.refuse("full_attention", "both kinds of layers");
  const Config full = all.inside("full_attention"), sliding = all.inside("sliding_attention");
  if (sliding.has("rope_theta")) refuse_base(sliding, sliding.number("rope_theta"));
  metadata.set(prefix + "rope.freq_base", full.has("rope_theta") ? full.number("rope_theta") : 1000000.0f);
  add_scaling(full, config, prefix, metadata);
}

// What readers know without a key, and what a checkpoint may have otherwise.
void refuse_unnamed(const Config& config, const std::string& name, uint32_t head) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::unsupported, config.where(), what + ", which GGUF has no key for",
                "keep the Hugging Face folder");
  };
  const uint32_t layers = config.integer("num_hidden_layers"), period = name == "gemma2" ? 2 : 6;
  const bool large = layers == (name == "gemma2" ? 46u : 62u);
  const uint32_t scalar =
      large ? config.integer("hidden_size") / config.integer("num_attention_heads") : head;
  if (config.has("query_pre_attn_scalar") &&
      config.number("query_pre_attn_scalar") != static_cast<float>(scalar))
    refuse("query_pre_attn_scalar is not the length of a head");
  if (config.has("sliding_window_pattern") && name == "gemma3" &&
      config.integer("sliding_window_pattern") != period)
    refuse("another period of full layers than 6");
  const Json types = config.value("layer_types");
  for (size_t i = 0; types.is_array() && i < types.size(); ++i) {
    if ((types[i] == "full_attention") != ((i + 1) % period == 0))
      refuse("another order of sliding and full layers");
  }
}

void add_experts(const Config& config, const std::string& prefix, Metadata& metadata) {
  const char* count = config.has("num_experts") ? "num_experts" : "num_local_experts";
  if (!config.has(count)) return;
  // What readers know without a key.
  const bool normed = prefix.starts_with("qwen3moe"), told = config.value("norm_topk_prob") == Json(true);
  if (prefix.starts_with("qwen") && normed != told)
    throw Error(ErrorKind::unsupported, config.where(),
                str("norm_topk_prob is ", normed ? "not " : "", "true, which GGUF has no key for"),
                "keep the Hugging Face folder");
  metadata.set(prefix + "expert_count", config.integer(count));
  metadata.set(prefix + "expert_used_count", config.integer("num_experts_per_tok"));
  if (config.has("shared_expert_intermediate_size"))
    metadata.set(prefix + "expert_shared_feed_forward_length",
                 config.integer("shared_expert_intermediate_size"));
  if (config.has("moe_intermediate_size"))
    metadata.set(prefix + "expert_feed_forward_length", config.integer("moe_intermediate_size"));
}

}  // namespace

std::string architecture(const Json& config, const std::string& where) {
  const Config fields(config, where);
  const std::string type = fields.has("model_type") ? fields.text("model_type") : std::string();
  if (const Family* family = family_of_type(type)) return family->architecture;
  throw Error(ErrorKind::unsupported, where,
              type.empty() ? std::string("a model without a model_type cannot be written as GGUF")
                           : str("models of type ", quote_name(type), " cannot be written as GGUF"),
              "choose another format, gptq or compressed-tensors; GGUF is written of " +
                  listed(known_model_types(), [](const char* name) { return std::string(name); }));
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
  const Family& family = *family_of_type(config.text("model_type"));
  if (head * uint64_t{heads} != hidden || family.key_length) {
    metadata.set(prefix + "attention.key_length", head);
    metadata.set(prefix + "attention.value_length", head);
  }
  if (name == "llama") metadata.set(prefix + "rope.dimension_count", head);
  if (name == "phi3") metadata.set(prefix + "rope.dimension_count", rotary_width(config, head));
  if (name == "gemma3") {
    add_gemma3_rope(config, prefix, metadata);
  } else {
    add_rope(config, prefix, metadata);
  }
  if (name.starts_with("gemma") || (name == "phi3" && config.has("sliding_window")))
    add_window(config, prefix, metadata);
  if (name == "gemma2" || name == "gemma3") refuse_unnamed(config, name, head);
  if (name == "gemma2") {
    for (const auto& [cap, usual] :
         {std::pair{"attn_logit_softcapping", 50.0f}, {"final_logit_softcapping", 30.0f}})
      metadata.set(prefix + cap, config.has(cap) ? config.number(cap) : config.missing(cap) ? usual : 0.0f);
  }
  add_experts(config, prefix, metadata);
  metadata.set(prefix + "vocab_size", config.integer("vocab_size"));
  return metadata;
}

}  // namespace gramian::gguf
