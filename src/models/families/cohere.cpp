// Command R: LayerNorms without bias, MLPs beside attention, heads that turn in pairs, scaled logits; optional norms of each
// head.
#include "models/families/cohere.h"

#include "models/families/registry.h"

namespace gramian {

DecoderSpec describe_cohere(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  spec.ropes[0].pairs = true;
  spec.norms.spec = {.kind = NormKind::layer, .eps = read_eps(config, "layer_norm_eps")};
  spec.residual.parallel = true;
  spec.logit_scale = config.number("logit_scale");
  return spec;
}

namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
  "num_attention_heads": 64, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
  "rope_theta": 500000.0, "tie_word_embeddings": true})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_cohere(config);
  for (AttentionSpec& attention : spec.attention) {
    if (!config.boolean_or("use_qk_norm", false)) continue;
    attention.qk_norm = spec.norms.spec;
    attention.qk_norm_kind = QkNormKind::own_head;
  }
  return spec;
}

}  // namespace

Family cohere() {
  return Family{"cohere", "CohereForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
