// Qwen 2 and 2.5: Llama with biases on q, k and v, and a sliding window in the layers that the configuration names.
#include "models/families/registry.h"

namespace gramian {
namespace {

bool slides(const ConfigReader& config, size_t layer, size_t layers) {
  if (!config.has("layer_types")) {
    return static_cast<int64_t>(layer) >= config.integer_or("max_window_layers", 28, 0);
  }
  const auto& types = config.json().at("layer_types");
  if (!types.is_array() || types.size() != layers || !types[layer].is_string()) {
    config.fail("layer_types", "must name the kind of every layer");
  }
  const std::string kind = types[layer].get<std::string>();
  if (kind != "sliding_attention" && kind != "full_attention") {
    throw Error(ErrorKind::unsupported, config.where(), str("layer type '", kind, "'"),
                "known: full_attention, sliding_attention");
  }
  return kind == "sliding_attention";
}

DecoderSpec describe(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  // A null sliding_window stands for none, a missing one for the default.
  const bool none = config.json().contains("sliding_window") && !config.has("sliding_window");
  const bool windowed = config.boolean_or("use_sliding_window", false) && !none;
  for (size_t i = 0; i < spec.attention.size(); ++i) {
    spec.attention[i].qkv_bias = true;
    if (!windowed || !slides(config, i, spec.attention.size())) continue;
    spec.attention[i].window = config.integer_or("sliding_window", 4096);
  }
  return spec;
}

}  // namespace

Family qwen2() { return {"qwen2", "Qwen2ForCausalLM", describe, pre_norm_layer, dense_modules()}; }

}  // namespace gramian
