// Mixtral: Mistral whose MLPs are mixtures of experts.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
  "num_local_experts": 8, "num_experts_per_tok": 2})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.window = config.integer_or("sliding_window", 0);
  MixtureSpec mixture;
  mixture.expert = spec.mlp;
  mixture.router.experts = config.integer("num_local_experts");
  mixture.router.norm_top_k = true;
  mixture.router.wide_weights = true;
  read_top_k(config, mixture.router);
  spec.mlp_name = "block_sparse_moe.";
  spec.mixture.assign(spec.attention.size(), mixture);
  name_experts(spec, "w1", "w3", "w2");
  return spec;
}

// transformers 5 calls everything as in other mixtures while in memory; files written from there keep those names.
void match_names(DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix) {
  if (!checkpoint.contains(prefix + "layers.0.mlp.gate.weight")) return;
  spec.mlp_name = "mlp.";
  name_experts(spec, "gate_proj", "up_proj", "down_proj");
}

}  // namespace

Family mixtral() {
  return Family{"mixtral",      "MixtralForCausalLM", kDefaults, read,
                residual_layer, layer_modules,        {},        match_names}
      .with_tree({trees::kAttention, trees::kMixture});
}

}  // namespace gramian
