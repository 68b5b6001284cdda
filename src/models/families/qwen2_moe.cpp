// Qwen 1.5 and 2 MoE: Qwen 2 whose MLPs are mixtures of experts with a shared expert behind a gate, but for the layers that
// the configuration names.
#include "models/families/qwen_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
  "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32768, "sliding_window": 4096,
  "max_window_layers": 28, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
  "num_experts_per_tok": 4, "num_experts": 60})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.qkv_bias = config.boolean_or("qkv_bias", true);
  if (config.boolean_or("use_sliding_window", false) && config.has("sliding_window")) {
    const int64_t full = config.integer("max_window_layers", 0);
    const std::vector<bool> sliding = read_sliding_layers(
        config, spec.layers(), [&](int64_t layer) { return layer % 2 == 0 && layer < full; });
    for (size_t i = 0; i < sliding.size(); ++i) {
      if (sliding[i]) spec.attention[i].window = config.integer("sliding_window");
    }
  }
  read_qwen_mixture(config, spec);
  return spec;
}

}  // namespace

Family qwen2_moe() {
  return Family{"qwen2_moe", "Qwen2MoeForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kQwenMixture});
}

}  // namespace gramian
