#include "models/family.h"

#include <cmath>

namespace gramian {

DecoderSpec describe_dense(const ConfigReader& config) {
  DecoderSpec spec;
  spec.hidden = config.integer("hidden_size");
  spec.vocab = config.integer("vocab_size");
  spec.norm_eps = config.number_or("rms_norm_eps", 1e-6);
  if (spec.norm_eps < 0) config.fail("rms_norm_eps", "must not be negative");
  spec.tied = config.boolean_or("tie_word_embeddings", false);

  AttentionSpec attention;
  attention.hidden = spec.hidden;
  attention.heads = config.integer("num_attention_heads");
  attention.kv_heads = config.integer_or("num_key_value_heads", attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.fail("num_key_value_heads",
                str("(", attention.kv_heads, ") must divide num_attention_heads (", attention.heads, ")"));
  }
  if (!config.has("head_dim") && spec.hidden % attention.heads != 0) {
    config.fail("num_attention_heads",
                str("must divide hidden_size ", spec.hidden, " when head_dim is not given"));
  }
  attention.head_dim = config.integer_or("head_dim", spec.hidden / attention.heads);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  spec.attention.assign(static_cast<size_t>(config.integer("num_hidden_layers", 1, 1 << 16)), attention);

  spec.ropes = {read_rope(config, attention.head_dim)};
  spec.mlp = {spec.hidden, config.integer("intermediate_size"), read_activation(config), false};
  return spec;
}

void turn_whole_heads(const ConfigReader& config, DecoderSpec& spec) {
  const int64_t head_dim = spec.attention[0].head_dim;
  for (RopeSpec& rope : spec.ropes) {
    if (rope.rotary_dim == head_dim) continue;
    if (rope.type != "default") {
      throw Error(ErrorKind::unsupported, config.where(),
                  str("partial_rotary_factor with rope type '", rope.type, "' in this model type"),
                  "only plain rotary positions are known for it");
    }
    rope.rotary_dim = head_dim;
  }
}

std::unique_ptr<DecoderLayer> pre_norm_layer(const DecoderSpec& spec, const Weights& weights,
                                             const std::string& prefix, int64_t index) {
  return std::make_unique<PreNormLayer>(weights, prefix, spec.attention[static_cast<size_t>(index)], spec.mlp,
                                        spec.norm_eps);
}

ModuleTree dense_modules() {
  return {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          {"self_attn.o_proj"},
          {"mlp.gate_proj", "mlp.up_proj"},
          {"mlp.down_proj"}};
}

}  // namespace gramian
