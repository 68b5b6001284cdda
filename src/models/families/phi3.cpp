// Phi 3 and 4: Llama whose q, k and v are one module and whose gate and up are another, with longrope positions.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
  "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
  "rms_norm_eps": 1e-5})";

// The first files call it su, later ones yarn.
RopeSpec read_positions(const ConfigReader& config, int64_t head_dim) {
  nlohmann::ordered_json json = config.json();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    for (const char* type : {"type", "rope_type"}) {
      if (json[key].is_object() && json[key].value(type, "") == "yarn") json[key][type] = "longrope";
    }
  }
  return read_rope({json, config.where()}, head_dim);
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_sizes(config);
  spec.ropes = {read_positions(config, spec.attention[0].head_dim)};
  spec.mlp.activation = read_activation(config);
  spec.mlp.fused = true;
  for (AttentionSpec& attention : spec.attention) {
    attention.fused = true;
    attention.window = config.integer_or("sliding_window", 0);
  }
  return spec;
}

}  // namespace

Family phi3() {
  return Family{"phi3", "Phi3ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kFusedAttention, trees::kFusedMlp});
}

}  // namespace gramian
