// Qwen 3 MoE: Qwen 3 whose MLPs are mixtures of experts, but for the layers that the configuration names.
#include <algorithm>

#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096,
  "moe_intermediate_size": 768, "num_experts_per_tok": 8, "decoder_sparse_step": 1})";

std::vector<int64_t> dense_layers(const ConfigReader& config) {
  std::vector<int64_t> layers;
  if (!config.has("mlp_only_layers")) return layers;
  const auto& list = config.json().at("mlp_only_layers");
  if (!list.is_array()) config.fail("mlp_only_layers", "must be a list of layer numbers");
  for (const auto& layer : list) {
    if (!layer.is_number_integer()) config.fail("mlp_only_layers", "must be a list of layer numbers");
    layers.push_back(layer.get<int64_t>());
  }
  return layers;
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  for (AttentionSpec& attention : spec.attention) {
    attention.qk_norm = spec.norms.spec;
    if (config.boolean_or("use_sliding_window", false) && config.has("sliding_window"))
      attention.window = config.integer("sliding_window");
  }
  MixtureSpec mixture;
  mixture.experts = config.has("num_experts") ? config.integer("num_experts", 0)
                                              : config.integer_or("num_local_experts", 128, 0);
  mixture.top_k = config.integer("num_experts_per_tok");
  mixture.intermediate = config.integer("moe_intermediate_size");
  mixture.norm_top_k = config.boolean_or("norm_topk_prob", false);
  if (mixture.experts > 0 && mixture.top_k > mixture.experts)
    config.fail("num_experts_per_tok", str("must not exceed the ", mixture.experts, " experts"));
  const int64_t step = config.integer("decoder_sparse_step");
  const std::vector<int64_t> dense = dense_layers(config);
  for (int64_t i = 0; i < spec.layers(); ++i) {
    const bool mixed = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
    spec.mixture.push_back(mixed ? mixture : MixtureSpec{});
  }
  return spec;
}

}  // namespace

Family qwen3_moe() {
  return {"qwen3_moe", "Qwen3MoeForCausalLM", kDefaults, read, residual_layer, dense_modules};
}

}  // namespace gramian
