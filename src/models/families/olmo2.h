// What OLMo 2 shares with OLMo Hybrid.
#pragma once

#include "models/family.h"

namespace gramian {

DecoderSpec describe_olmo2(const ConfigReader& config);

}  // namespace gramian
