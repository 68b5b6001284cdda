// Granite 3: Llama with four multipliers, of the embedding, of what a layer adds to the residual, of attention scores (in
// place of 1/sqrt(head_dim)) and of the logits, which are divided.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "max_position_embeddings": 2048, "embedding_multiplier": 1.0,
  "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  spec.mlp.bias = config.boolean_or("mlp_bias", false);
  spec.embedding_scale = config.number("embedding_multiplier");
  spec.residual.scale = config.number("residual_multiplier");
  const double divisor = config.number("logits_scaling");
  if (divisor == 0) config.fail("logits_scaling", "must not be 0");
  spec.logit_scale = 1.0 / divisor;
  for (AttentionSpec& attention : spec.attention) attention.scale = config.number("attention_multiplier");
  return spec;
}

}  // namespace

Family granite() {
  return Family{"granite", "GraniteForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
