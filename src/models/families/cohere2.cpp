// Command R7B and A: Command R whose full layers have no position coding, between layers with a sliding window.
#include "models/families/cohere.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
  "num_attention_heads": 64, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
  "sliding_window": 4096, "sliding_window_pattern": 4, "tie_word_embeddings": true})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_cohere(config);
  const int64_t pattern = config.integer("sliding_window_pattern");
  const std::vector<bool> sliding =
      read_sliding_layers(config, spec.layers(), [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) {
      spec.attention[i].window = config.integer("sliding_window");
    } else {
      spec.attention[i].rope = std::nullopt;
    }
  }
  return spec;
}

}  // namespace

Family cohere2() {
  return Family{"cohere2", "Cohere2ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

}  // namespace gramian
