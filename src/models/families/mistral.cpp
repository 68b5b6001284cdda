// Mistral: Llama with a sliding window in every layer; sliding_window null is none.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
  "sliding_window": 4096})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.window = config.integer_or("sliding_window", 0);
  return spec;
}

}  // namespace

Family mistral() {
  return Family{"mistral", "MistralForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
