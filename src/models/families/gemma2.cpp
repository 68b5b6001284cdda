// Gemma 2: Gemma with norms on both sides of attention and MLP, capped scores and logits, and sliding windows in turn.
#include <cmath>

#include "models/families/gemma.h"
#include "models/families/registry.h"

namespace gramian {

DecoderSpec describe_gemma2(const ConfigReader& config) {
  DecoderSpec spec = describe_gemma(config, "hidden_activation");
  spec.norms.after_attention = "post_attention_layernorm";
  spec.norms.before_mlp = "pre_feedforward_layernorm";
  spec.norms.after_mlp = "post_feedforward_layernorm";
  spec.logit_softcap = read_softcap(config, "final_logit_softcapping");
  const double scalar = config.number("query_pre_attn_scalar");
  if (!(scalar > 0)) config.fail("query_pre_attn_scalar", "must be positive");
  for (AttentionSpec& attention : spec.attention) attention.scale = 1.0 / std::sqrt(scalar);
  return spec;
}

namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "tie_word_embeddings": true,
  "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0,
  "attn_logit_softcapping": 50.0})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_gemma2(config);
  spec.ropes = {read_rope(config, spec.attention[0].head_dim)};
  turn_whole_heads(config, spec);
  const std::vector<bool> sliding =
      read_sliding_layers(config, spec.layers(), [](int64_t layer) { return layer % 2 == 0; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    spec.attention[i].softcap = read_softcap(config, "attn_logit_softcapping");
    if (sliding[i]) spec.attention[i].window = config.integer("sliding_window");
  }
  return spec;
}

}  // namespace

Family gemma2() {
  return Family{"gemma2", "Gemma2ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
