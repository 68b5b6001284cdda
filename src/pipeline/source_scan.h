// One pass over a checkpoint's weights before work starts: values that no output can hold are refused, with their place, and
// what was read can be recognized later.
#pragma once

#include <map>
#include <string>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "pipeline/plan.h"

namespace gramian {

// Throws corrupt_data listing every floating-point tensor that holds NaN or infinity, and every bias of a module to be
// quantized that holds a value beyond f16, the type it is stored in; each with count and first position.
// Returns the digests of all tensors (base/digest.h) by their names.
std::map<std::string, std::string> scan_source(const Checkpoint& checkpoint, const QuantizePlan& plan,
                                               ThreadPool& pool, Log& log);

}  // namespace gramian
