// GPTQ (formats/gptq.h), versions 1 and 2, as formats among others.
#pragma once

#include "formats/gptq.h"
#include "formats/linear_format.h"

namespace gramian {

const LinearFormat& gptq_format();
const LinearFormat& gptq_v2_format();

}  // namespace gramian
