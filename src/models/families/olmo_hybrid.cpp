// OLMo Hybrid: gated delta nets under norms like those of llama, with the attention of OLMo 2 in every fourth layer.
#include "models/families/delta_rule_layers.h"
#include "models/families/olmo2.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 30, "max_position_embeddings": 65536, "linear_conv_kernel_dim": 4})";

// Sizes that follow from others where the file leaves them out.
nlohmann::ordered_json with_delta_sizes(const ConfigReader& config, const DecoderSpec& spec) {
  nlohmann::ordered_json json = config.json();
  const auto set = [&](const char* key, int64_t value) {
    if (!config.has(key)) json[key] = value;
  };
  set("linear_num_key_heads", spec.attention[0].heads);
  set("linear_num_value_heads", spec.attention[0].heads);
  const ConfigReader heads(json, config.where());
  set("linear_key_head_dim", 3 * spec.hidden / (4 * heads.integer("linear_num_key_heads")));
  set("linear_value_head_dim", 2 * ConfigReader(json, config.where()).integer("linear_key_head_dim"));
  return json;
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_olmo2(config);
  spec.recurrent_norms = LayerNorms{.spec = spec.norms.spec};
  const bool turns = config.has("rope_theta") || config.object("rope_parameters").has("rope_theta");
  for (AttentionSpec& attention : spec.attention) {
    if (!turns) attention.rope.reset();
  }
  read_recurrent_layers(config, spec, "full_attention", [&](int64_t layer) {
    return layer % 4 != 3 && (spec.layers() > 3 || layer + 1 < spec.layers());
  });
  const nlohmann::ordered_json sized = with_delta_sizes(config, spec);
  // transformers gives the norm of a head's output no eps of the configuration.
  spec.delta_net =
      GatedDeltaNetSpec{.sizes = read_delta_sizes({sized, config.where()}, spec.hidden),
                        .projections = DeltaProjections::separate,
                        .beta_max = config.boolean_or("linear_allow_neg_eigval", true) ? 2.0 : 1.0,
                        .norm = {.eps = 1e-5}};
  return spec;
}

// Files of the model's makers call the norms of a recurrent layer otherwise.
void match_names(DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix) {
  if (!any_layer_has(spec, checkpoint, prefix, "attention_layer_norm.weight")) return;
  spec.recurrent_norms->before_attention = "attention_layer_norm";
  spec.recurrent_norms->before_mlp = "feedforward_layer_norm";
}

}  // namespace

Family olmo_hybrid() {
  return Family{"olmo_hybrid",  "OlmoHybridForCausalLM", kDefaults, read,
                residual_layer, layer_modules,           {},        match_names}
      .with_tree({trees::kAttention, trees::kDeltaNetOneByOne, trees::kMlp});
}

}  // namespace gramian
