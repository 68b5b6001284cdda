// Qwen 3 Next: gated delta nets, their projections stored key head by key head, with gated attention in every fourth layer;
// mixtures with a shared expert, but for the layers that the configuration names.
#include "models/families/delta_rule_layers.h"
#include "models/families/qwen_moe.h"
#include "models/families/registry.h"

namespace gramian {
namespace {

constexpr char kDefaults[] = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
  "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
  "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10,
  "num_experts": 512})";

DecoderSpec read(const ConfigReader& config) {
  DecoderSpec spec = describe_qwen_hybrid(config, DeltaProjections::by_key_head);
  read_qwen_mixture(config, spec, true);
  return spec;
}

}  // namespace

Family qwen3_next() {
  return Family{"qwen3_next", "Qwen3NextForCausalLM", kDefaults, read, residual_layer, layer_modules}
      .with_tree({trees::kAttention, trees::kDeltaNetByKeyHead, trees::kQwenMixture});
}

}  // namespace gramian
