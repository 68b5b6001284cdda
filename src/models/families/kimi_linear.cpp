// Kimi Linear: Kimi delta attention with latent attention, which knows no positions, in every fourth layer; mixtures routed
// like those of DeepSeek-V3 behind the first dense layers.
#include <algorithm>

#include "models/families/delta_rule_layers.h"
#include "models/families/grouped_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDefaults[] = R"({
  "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
  "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5, "model_max_length": 1048576,
  "moe_intermediate_size": 1024, "num_shared_experts": 1, "num_experts": 256, "num_experts_per_token": 8,
  "num_expert_group": 1, "topk_group": 1, "moe_renormalize": true, "routed_scaling_factor": 2.446,
  "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
  "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "first_k_dense_replace": 1})";

// The settings under the names that other families have for them.
Json renamed(const ConfigReader& config) {
  Json json = with_kimi_delta_sizes(config);
  const auto take = [&](const char* own, const char* common) {
    if (config.has(own)) json[common] = config.json().at(own);
  };
  take("num_experts", "n_routed_experts");
  take("num_experts_per_token", "num_experts_per_tok");
  take("num_expert_group", "n_group");
  take("num_shared_experts", "n_shared_experts");
  take("moe_renormalize", "norm_topk_prob");
  json["head_dim"] = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim", 0);
  return json;
}

// Whether layer `index` has latent attention, where layer_types does not say it. Files of the model's makers count from 1.
bool is_full(const ConfigReader& config, int64_t index) {
  const ConfigReader nested = config.object("linear_attn_config");
  if (!nested.has("full_attn_layers")) return index > 0 && index % 4 == 0;
  const Json& layers = nested.json().at("full_attn_layers");
  if (!layers.is_array()) nested.fail("full_attn_layers", "must be a list of layer numbers");
  return std::find(layers.begin(), layers.end(), Json(index + 1)) != layers.end();
}

DecoderSpec read(const ConfigReader& original) {
  const Json json = renamed(original);
  const ConfigReader config(json, original.where());
  DecoderSpec spec = describe_sizes(config);
  spec.mlp.activation = read_activation(config);
  LatentAttentionSpec latent = read_latent_attention(config, spec);
  // transformers gives these norms no eps of the configuration.
  latent.norm.eps = 1e-6;
  latent.rope.reset();
  spec.latent = latent;
  read_recurrent_layers(config, spec, "full_attention",
                        [&](int64_t layer) { return !is_full(config, layer); });
  spec.kimi_delta = KimiDeltaSpec{.sizes = read_delta_sizes(config, spec.hidden),
                                  .lower_bound = {},
                                  .norm = {.eps = spec.norms.spec.eps, .gate = Gate::sigmoid}};
  read_grouped_mixture(config, spec);
  spec.mixture_name = "block_sparse_moe.";
  name_experts(spec, "w1", "w3", "w2");
  return spec;
}

// transformers 5 calls everything as in other mixtures while in memory; files written from there keep those names.
void match_names(DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix) {
  if (!any_layer_has(spec, checkpoint, prefix, "mlp.gate.weight")) return;
  spec.mixture_name = "";
  name_experts(spec, "gate_proj", "up_proj", "down_proj");
}

}  // namespace

Family kimi_linear() {
  return Family{"kimi_linear",  "KimiLinearForCausalLM", kDefaults, read,
                residual_layer, layer_modules,           {},        match_names}
      .with_tree({trees::kLatentAttention, trees::kGroupedMixture});
}

}  // namespace gramian
