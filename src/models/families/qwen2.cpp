// Qwen 2 and 2.5: Llama with biases on q, k and v, and a sliding window in the layers that the configuration names. The
// text part of Qwen 2 VL and 2.5 VL is the same; its three rotary sections turn alike where there are no images.
#include "models/families/registry.h"

namespace gramian {
namespace {

// Without num_key_value_heads, of which the class has 32: as many as num_attention_heads.
constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096,
  "max_window_layers": 28})";

constexpr char kVlDefaults[] = R"({
  "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": 4096,
  "max_window_layers": 80})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.qkv_bias = true;
  read_qwen_windows(config, spec);
  return spec;
}

}  // namespace

Family qwen2() {
  return Family{"qwen2", "Qwen2ForCausalLM", kDefaults, read, residual_layer, layer_modules}.with_tree(
      {trees::kAttention, trees::kMlp});
}

// Older files keep the text part's settings at the top, under the type of the whole.
Family qwen2_vl() {
  Family family = qwen2();
  family.model_type = "qwen2_5_vl_text";
  family.architecture = "Qwen2_5_VLForConditionalGeneration";
  family.defaults = kVlDefaults;
  family.other_types = {"qwen2_5_vl", "qwen2_vl", "qwen2_vl_text"};
  family.verified = false;
  return family;
}

}  // namespace gramian
