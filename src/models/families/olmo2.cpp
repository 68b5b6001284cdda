// OLMo 2: norms stand behind attention and MLP instead of before them, and run over all heads of q and of k at once.
#include "models/families/olmo2.h"

#include "models/families/registry.h"

namespace gramian {

DecoderSpec describe_olmo2(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  spec.norms.spec.kind = NormKind::rms_once;
  spec.norms.before_attention = "";
  spec.norms.after_attention = "post_attention_layernorm";
  spec.norms.before_mlp = "";
  spec.norms.after_mlp = "post_feedforward_layernorm";
  for (AttentionSpec& attention : spec.attention) {
    attention.qk_norm = spec.norms.spec;
    attention.qk_norm_kind = QkNormKind::all_heads;
  }
  return spec;
}

namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5})";

}  // namespace

Family olmo2() {
  return Family{"olmo2", "Olmo2ForCausalLM", kDefaults, describe_olmo2, residual_layer, layer_modules}
      .with_tree({trees::kAttention, trees::kMlp});
}

}  // namespace gramian
