#include "models/families/delta_rule_layers.h"

namespace gramian {

void read_recurrent_layers(const ConfigReader& config, DecoderSpec& spec, const std::string& attention,
                           const std::function<bool(int64_t)>& otherwise) {
  const std::string kRecurrent = "linear_attention";
  if (spec.mlp.activation != Activation::silu) {
    throw Error(ErrorKind::unsupported, config.where(),
                "hidden_act '" + config.text_or("hidden_act", "") + "' beside linear attention",
                "known: silu");
  }
  for (const std::string& type :
       read_layer_types(config, spec.layers(), {attention, kRecurrent},
                        [&](int64_t layer) { return otherwise(layer) ? kRecurrent : attention; }))
    spec.recurrent.push_back(type == kRecurrent);
}

nlohmann::ordered_json with_kimi_delta_sizes(const ConfigReader& config) {
  nlohmann::ordered_json json = config.json();
  const ConfigReader nested = config.object("linear_attn_config");
  const auto take = [&](const char* own, const char* common) {
    if (nested.has(own)) json[common] = nested.json().at(own);
  };
  take("head_dim", "linear_head_dim");
  take("num_heads", "linear_num_heads");
  take("short_conv_kernel_size", "linear_conv_kernel_dim");
  for (const char* kind : {"key", "value"}) {
    json[str("linear_", kind, "_head_dim")] = json.at("linear_head_dim");
    json[str("linear_num_", kind, "_heads")] = json.at("linear_num_heads");
  }
  return json;
}

DeltaSizes read_delta_sizes(const ConfigReader& config, int64_t hidden) {
  constexpr int64_t kHeadsMax = 1 << 16, kDimMax = 1 << 14;
  const DeltaSizes sizes{.hidden = hidden,
                         .key_heads = config.integer("linear_num_key_heads", 1, kHeadsMax),
                         .heads = config.integer("linear_num_value_heads", 1, kHeadsMax),
                         .key_dim = config.integer("linear_key_head_dim", 1, kDimMax),
                         .value_dim = config.integer("linear_value_head_dim", 1, kDimMax),
                         .kernel = config.integer("linear_conv_kernel_dim", 1, 64)};
  if (sizes.heads % sizes.key_heads != 0) {
    config.fail("linear_num_key_heads",
                str("(", sizes.key_heads, ") must divide linear_num_value_heads (", sizes.heads, ")"));
  }
  return sizes;
}

DecoderSpec describe_qwen_hybrid(const ConfigReader& config, DeltaProjections projections) {
  DecoderSpec spec = describe_dense(config);
  spec.norms.spec.kind = NormKind::rms_offset;
  read_attention_bias(config, spec);
  for (AttentionSpec& attention : spec.attention) {
    attention.gated = true;
    attention.qk_norm = spec.norms.spec;
  }
  const int64_t interval = config.integer_or("full_attention_interval", 4);
  read_recurrent_layers(config, spec, "full_attention",
                        [&](int64_t layer) { return (layer + 1) % interval != 0; });
  spec.delta_net = GatedDeltaNetSpec{.sizes = read_delta_sizes(config, spec.hidden),
                                     .projections = projections,
                                     .norm = {.eps = spec.norms.spec.eps}};
  return spec;
}

nlohmann::ordered_json with_intermediate_size(const ConfigReader& config) {
  nlohmann::ordered_json json = config.json();
  if (!config.has("intermediate_size")) json["intermediate_size"] = config.integer("moe_intermediate_size");
  return json;
}

}  // namespace gramian
