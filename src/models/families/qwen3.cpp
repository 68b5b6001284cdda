// Qwen 3: Qwen 2 with norms on every head of q and k, an explicit head_dim, and biases only on request.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
  "sliding_window": 4096, "max_window_layers": 28})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.qk_norm = spec.norms.spec;
  read_qwen_windows(config, spec);
  return spec;
}

}  // namespace

Family qwen3() {
  return Family{"qwen3", "Qwen3ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
