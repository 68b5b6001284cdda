// What families share that follow DeepSeek-V3: mixtures with sigmoid scores, groups of experts, shared experts and dense first
// layers; the sizes of latent attention.
#pragma once

#include "models/family.h"

namespace gramian {

// Fills spec.mixture. Dense layers: those that mlp_layer_types names, else the first_k_dense_replace first ones.
void read_grouped_mixture(const ConfigReader& config, DecoderSpec& spec);
// Ranks and dimensions under their usual keys, attention_bias, and the scale of whole heads.
LatentAttentionSpec read_latent_attention(const ConfigReader& config, const DecoderSpec& spec);

}  // namespace gramian
