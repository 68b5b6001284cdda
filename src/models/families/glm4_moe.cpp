// GLM 4.5 and 4.6: grouped-query attention whose heads turn in part, and mixtures as DeepSeek V3 has them.
#include "models/families/grouped_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
  "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
  "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
  "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
  "first_k_dense_replace": 1, "num_nextn_predict_layers": 1})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  for (AttentionSpec& attention : spec.attention) {
    attention.qkv_bias = config.boolean_or("attention_bias", false);
    if (config.boolean_or("use_qk_norm", false)) attention.qk_norm = spec.norms.spec;
  }
  read_grouped_mixture(config, spec);
  return spec;
}

}  // namespace

Family glm4_moe() {
  return Family{"glm4_moe", "Glm4MoeForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kGroupedMixture});
}

}  // namespace gramian
