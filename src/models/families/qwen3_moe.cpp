// Qwen 3 MoE: Qwen 3 whose MLPs are mixtures of experts, but for the layers that the configuration names.
#include "models/families/qwen_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096,
  "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  for (AttentionSpec& attention : spec.attention) {
    attention.qk_norm = spec.norms.spec;
    if (config.boolean_or("use_sliding_window", false) && config.has("sliding_window"))
      attention.window = config.integer("sliding_window");
  }
  read_qwen_mixture(config, spec);
  return spec;
}

}  // namespace

Family qwen3_moe() {
  return Family{"qwen3_moe", "Qwen3MoeForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMixture});
}

}  // namespace gramian
