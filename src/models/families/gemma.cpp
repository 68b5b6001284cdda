// Gemma: Llama with norms of weight 1 + w, the embedding scaled by sqrt(hidden), and a gated tanh-GELU MLP.
#include "models/families/gemma.h"

#include <cmath>

#include "models/families/registry.h"

namespace gramian {

DecoderSpec describe_gemma(const ConfigReader& config, const std::string& activation_key) {
  if (config.boolean_or("use_bidirectional_attention", false)) {
    throw Error(ErrorKind::unsupported, config.where(), "use_bidirectional_attention is true",
                "only causal decoders are built");
  }
  DecoderSpec spec = describe_sizes(config);
  spec.norms.spec.kind = NormKind::rms_offset;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.round_embedding_scale = true;
  spec.mlp.activation = read_activation(config, activation_key);
  read_attention_bias(config, spec);
  return spec;
}

namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
  "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
  "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "tie_word_embeddings": true})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_gemma(config, "hidden_act");
  // The first files say gelu and mean its tanh form.
  if (spec.mlp.activation == Activation::gelu) spec.mlp.activation = Activation::gelu_tanh;
  spec.ropes = {read_rope(config, spec.attention[0].head_dim)};
  turn_whole_heads(config, spec);
  return spec;
}

}  // namespace

Family gemma() {
  return Family{"gemma", "GemmaForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
