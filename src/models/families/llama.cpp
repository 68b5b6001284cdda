// Llama 1-3: grouped-query attention, rotary positions (llama3 scaling in 3.1 and later), gated SiLU MLP.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "max_position_embeddings": 2048})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  spec.mlp.bias = config.boolean_or("mlp_bias", false);
  return spec;
}

}  // namespace

Family llama() {
  return Family{"llama", "LlamaForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
