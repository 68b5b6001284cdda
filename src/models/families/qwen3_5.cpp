// Qwen 3.5, text: gated delta nets with gated attention in every fourth layer; dense, or mixtures with a shared expert. The
// three rotary sections of a multimodal file turn alike where there are no images.
#include "models/families/delta_rule_layers.h"
#include "models/families/qwen_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
  "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32})";

constexpr char kMoeDefaults[] = R"({
  "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256})";

DecoderSpec read(const ConfigReader& config) {
  return describe_qwen_hybrid(config, DeltaProjections::joined);
}

DecoderSpec read_moe(const ConfigReader& config) {
  const nlohmann::ordered_json sized = with_intermediate_size(config);
  const ConfigReader reader(sized, config.where());
  DecoderSpec spec = describe_qwen_hybrid(reader, DeltaProjections::joined);
  read_qwen_mixture(reader, spec, true);
  // Whatever norm_topk_prob says.
  for (MixtureSpec& mixture : spec.mixture) mixture.router.norm_top_k = true;
  return spec;
}

}  // namespace

Family qwen3_5_text() {
  return Family{"qwen3_5_text", "Qwen3_5ForCausalLM", kDefaults, read, residual_layer, layer_modules}
      .with_tree({trees::kAttention, trees::kDeltaNet, trees::kMlp});
}

Family qwen3_5_moe_text() {
  return Family{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", kMoeDefaults,
                read_moe,           residual_layer,          layer_modules}
      .with_tree({trees::kAttention, trees::kDeltaNet, trees::kQwenMixture});
}

}  // namespace gramian
