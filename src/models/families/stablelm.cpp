// StableLM 2: LayerNorms with biases, heads that turn in a quarter of their entries; optional norms of each head, and MLPs
// beside attention instead of behind it.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "layer_norm_eps": 1e-5,
  "partial_rotary_factor": 0.25})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  spec.norms.spec = {.kind = NormKind::layer, .eps = read_eps(config, "layer_norm_eps"), .bias = true};
  spec.residual.parallel = config.boolean_or("use_parallel_residual", false);
  for (AttentionSpec& attention : spec.attention) {
    attention.qkv_bias = config.boolean_or("use_qkv_bias", false);
    if (!config.boolean_or("qk_layernorm", false)) continue;
    attention.qk_norm = {.kind = NormKind::layer, .eps = spec.norms.spec.eps};
    attention.qk_norm_kind = QkNormKind::own_head_listed;
  }
  return spec;
}

}  // namespace

Family stablelm() {
  return Family{"stablelm", "StableLmForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
