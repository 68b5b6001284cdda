// One pass over a checkpoint's weights before work starts: NaN and infinity are refused, with their place.
#pragma once

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"

namespace gramian {

// Throws corrupt_data listing every floating-point tensor that holds a non-finite value, with count and first position.
void refuse_non_finite(const Checkpoint& checkpoint, ThreadPool& pool, Log& log);

}  // namespace gramian
