// What the Gemma families share.
#pragma once

#include "models/family.h"

namespace gramian {

// Sizes, norms of weight 1 + w, the embedding times sqrt(hidden), biases on request, the activation under
// `activation_key`; rotary settings are left to the caller. Throws unsupported for bidirectional attention.
DecoderSpec describe_gemma(const ConfigReader& config, const std::string& activation_key);

// From Gemma 2 on: a norm before and after attention and MLP, and query_pre_attn_scalar^-0.5 as scale of q·k.
DecoderSpec describe_gemma2(const ConfigReader& config);

}  // namespace gramian
