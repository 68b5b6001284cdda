// Llama 4, text: layers with rotary positions attend within chunks, those without see everything; MLPs and mixtures whose
// experts read scaled inputs in turn.
#include <algorithm>

#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
  "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "num_experts_per_tok": 1,
  "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": true, "no_rope_layer_interval": 4,
  "attention_chunk_size": 8192, "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1})";

void read_positions(const ConfigReader& config, DecoderSpec& spec) {
  spec.ropes = {read_rope(config, spec.attention[0].head_dim)};
  turn_whole_heads(config, spec);
  spec.ropes[0].pairs = true;
  auto turning = config.integers("no_rope_layers");
  if (!turning || turning->empty()) {
    turning.emplace();
    const int64_t interval = config.integer("no_rope_layer_interval");
    for (int64_t i = 0; i < spec.layers(); ++i) turning->push_back((i + 1) % interval != 0 ? 1 : 0);
  }
  if (static_cast<int64_t>(turning->size()) < spec.layers())
    config.fail("no_rope_layers", "must name every layer");
  const std::string kFull = "full_attention", kChunked = "chunked_attention";
  const std::vector<std::string> kinds = read_layer_types(
      config, spec.layers(), {kFull, kChunked},
      [&](int64_t layer) { return (*turning)[static_cast<size_t>(layer)] != 0 ? kChunked : kFull; });
  for (size_t i = 0; i < spec.attention.size(); ++i) {
    AttentionSpec& attention = spec.attention[i];
    if (kinds[i] == kChunked) attention.chunk = config.integer_or("attention_chunk_size", 0);
    attention.qk_norm_kind = QkNormKind::turned;
    if ((*turning)[i] != 0) {
      if (config.boolean_or("use_qk_norm", true)) attention.qk_norm = spec.norms.spec;
      continue;
    }
    attention.rope = std::nullopt;
    if (config.boolean_or("attn_temperature_tuning", true))
      attention.position_scale = {config.number("attn_scale"),
                                  static_cast<double>(config.integer("floor_scale"))};
  }
}

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_sizes(config);
  read_positions(config, spec);
  read_attention_bias(config, spec);
  spec.mlp.activation = read_activation(config);
  spec.mlp_name = "feed_forward.";
  MixtureSpec mixture;
  mixture.expert = spec.mlp;
  mixture.stack = ExpertStack::columns;
  mixture.router = {.rule = RouterSpec::Rule::scaled_input, .name = "router"};
  mixture.router.experts = config.integer("num_local_experts");
  read_top_k(config, mixture.router);
  mixture.shared = "shared_expert";
  mixture.shared_expert = mixture.expert;
  spec.mlp.intermediate = config.integer("intermediate_size_mlp");
  const auto mixed = config.integers("moe_layers");
  const int64_t step = config.integer("interleave_moe_layer_step");
  for (int64_t i = 0; i < spec.layers(); ++i) {
    const bool has = mixed ? std::find(mixed->begin(), mixed->end(), i) != mixed->end() : (i + 1) % step == 0;
    spec.mixture.emplace_back();
    if (has) spec.mixture.back() = mixture;
  }
  return spec;
}

}  // namespace

Family llama4_text() {
  return Family{"llama4_text", "Llama4ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kLlama4Mixture});
}

}  // namespace gramian
