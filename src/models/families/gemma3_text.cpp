// Gemma 3, text: Gemma 2 with norms on every head of q and k, and rotary settings of their own for sliding and full
// layers. Scores are not capped, whatever attn_logit_softcapping says: transformers reads it and leaves it unused.
#include "models/families/gemma.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "tie_word_embeddings": true,
  "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
  "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})";

// The settings of one kind of layer. New files nest them under the kind's name; older ones have one base a kind and
// rope_scaling, which is of the full layers.
RopeSpec read_kind(const ConfigReader& config, int64_t head_dim, bool sliding) {
  using Json = nlohmann::ordered_json;
  const ConfigReader nested =
      config.object("rope_parameters").object(sliding ? "sliding_attention" : "full_attention");
  Json rope = nested.json().empty() ? Json{{"rope_type", "default"}} : nested.json();
  if (!sliding) rope.update(config.object("rope_scaling").json());
  if (!rope.contains("rope_theta")) {
    const char* key = sliding ? "rope_local_base_freq" : "rope_theta";
    rope["rope_theta"] = config.number(key);
  }
  const Json alone{{"rope_parameters", rope},
                   {"head_dim", head_dim},
                   {"max_position_embeddings", config.integer("max_position_embeddings")},
                   {"partial_rotary_factor", config.number_or("partial_rotary_factor", 1.0)}};
  return read_rope({alone, config.where()}, head_dim);
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_gemma2(config);
  const int64_t head_dim = spec.attention[0].head_dim;
  spec.ropes = {read_kind(config, head_dim, true), read_kind(config, head_dim, false)};
  turn_whole_heads(config, spec);
  const int64_t pattern = config.integer("sliding_window_pattern");
  const std::vector<bool> sliding =
      read_sliding_layers(config, spec.layers(), [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    spec.attention[i].qk_norm = spec.norms.spec;
    spec.attention[i].rope = sliding[i] ? 0 : 1;
    if (sliding[i]) spec.attention[i].window = config.integer("sliding_window");
  }
  return spec;
}

}  // namespace

Family gemma3_text() {
  return Family{"gemma3_text", "Gemma3ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
