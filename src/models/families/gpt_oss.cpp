// gpt-oss: sliding and full attention in turn with a learned sink in each softmax, and mixtures of experts whose gated MLP is
// clamped and has biases.
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "head_dim": 64,
  "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 131072, "rope_theta": 150000.0, "attention_bias": true, "num_local_experts": 128,
  "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0})";

// What transformers takes when a file says nothing about positions.
constexpr char kRope[] = R"({
  "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
  "original_max_position_embeddings": 4096})";

RopeSpec read_positions(const ConfigReader& config, int64_t head_dim) {
  nlohmann::ordered_json json = config.json();
  if (!config.has("rope_parameters") && !config.has("rope_scaling"))
    json["rope_parameters"] = nlohmann::ordered_json::parse(kRope);
  return read_rope({json, config.where()}, head_dim);
}

MixtureSpec read_mixture(const ConfigReader& config, const MlpSpec& mlp) {
  MixtureSpec mixture{.expert = mlp, .stack = ExpertStack::columns_paired};
  mixture.router = {.rule = RouterSpec::Rule::softmax_of_top, .name = "router", .bias = true};
  mixture.router.experts = config.integer("num_local_experts");
  read_top_k(config, mixture.router);
  mixture.expert.bias = true;
  mixture.expert.limit = config.number("swiglu_limit");
  mixture.expert.gate_slope = config.number("swiglu_alpha");
  mixture.expert.up_offset = 1;
  if (!(mixture.expert.limit > 0)) config.fail("swiglu_limit", "must be positive");
  return mixture;
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_sizes(config);
  spec.norms.spec.kind = NormKind::rms_once;
  spec.ropes = {read_positions(config, spec.attention[0].head_dim)};
  turn_whole_heads(config, spec);
  read_attention_bias(config, spec);
  const std::vector<bool> sliding =
      read_sliding_layers(config, spec.layers(), [](int64_t layer) { return layer % 2 == 0; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    spec.attention[i].sinks = true;
    if (sliding[i]) spec.attention[i].window = config.integer("sliding_window");
  }
  spec.mixture.assign(spec.attention.size(), read_mixture(config, spec.mlp));
  return spec;
}

}  // namespace

Family gpt_oss() {
  return Family{"gpt_oss", "GptOssForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMixture});
}

}  // namespace gramian
