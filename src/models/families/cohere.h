// What Command R and R7B share.
#pragma once

#include "models/family.h"

namespace gramian {

// LayerNorms without bias, MLPs beside attention, heads that turn in pairs, scaled logits.
DecoderSpec describe_cohere(const ConfigReader& config);

}  // namespace gramian
