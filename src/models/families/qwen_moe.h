// What the mixtures of Qwen share: which layers have one, and how it routes.
#pragma once

#include "models/family.h"

namespace gramian {

// Fills spec.mixture. With shared_expert_intermediate_size in the configuration there is a shared expert behind a gate.
// `norm_top_k`: whether norm_topk_prob holds where it is missing.
void read_qwen_mixture(const ConfigReader& config, DecoderSpec& spec, bool norm_top_k = false);

}  // namespace gramian
