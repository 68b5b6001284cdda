// Llama 1-3: grouped-query attention, rotary positions (llama3 scaling in 3.1 and later), gated SiLU MLP.
#include "models/families/registry.h"

namespace gramian {
namespace {

DecoderSpec describe(const ConfigReader& config) {
  DecoderSpec spec = describe_dense(config);
  turn_whole_heads(config, spec);
  for (AttentionSpec& attention : spec.attention) {
    attention.qkv_bias = config.boolean_or("attention_bias", false);
    attention.o_bias = attention.qkv_bias;
  }
  spec.mlp.bias = config.boolean_or("mlp_bias", false);
  return spec;
}

}  // namespace

Family llama() { return {"llama", "LlamaForCausalLM", describe, pre_norm_layer, dense_modules()}; }

}  // namespace gramian
