// DeepSeek V3 and R1: multi-head latent attention, and mixtures of many small experts behind the first dense layers.
#include "models/families/grouped_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
  "num_attention_heads": 128, "max_position_embeddings": 4096, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
  "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
  "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1})";

DecoderSpec read(const ConfigReader& file) {
  // The heads of transformers' class are what turns, whatever a file says.
  nlohmann::ordered_json json = file.json();
  json["head_dim"] = file.integer("qk_rope_head_dim");
  const ConfigReader config(json, file.where());
  DecoderSpec spec = describe_sizes(config);
  spec.mlp.activation = read_activation(config);
  LatentAttentionSpec latent = read_latent_attention(config, spec);
  // transformers gives these norms no eps of the configuration.
  latent.norm.eps = 1e-6;
  spec.ropes = {read_rope(config, latent.rope_dim)};
  turn_whole_heads(config, spec);
  spec.ropes[0].pairs = config.boolean_or("rope_interleave", true);
  const double sharpness = spec.ropes[0].mscale_all;
  latent.scale *= sharpness * sharpness;
  spec.latent = latent;
  for (AttentionSpec& attention : spec.attention) attention.head_dim = latent.head_dim();
  read_grouped_mixture(config, spec);
  return spec;
}

}  // namespace

Family deepseek_v3() {
  return Family{"deepseek_v3", "DeepseekV3ForCausalLM", kDefaults, read, residual_layer, layer_modules}
      .with_tree({trees::kLatentAttention, trees::kGroupedMixture});
}

}  // namespace gramian
