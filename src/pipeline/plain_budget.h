// The memory of a job without a forward: modules are read, rounded and written one after another.
#pragma once

#include <cstdint>

#include "formats/checkpoint.h"
#include "pipeline/plan.h"

namespace gramian {

// Throws unsupported when such a job does not fit into `memory_bytes` of resident memory, naming the smallest that can. Counted are
// the process as it is, one source tensor with its decoded copies, and for `one_file` what is encoded outside the modules.
void refuse_small_memory(const QuantizePlan& plan, const Checkpoint& source, bool one_file,
                         int64_t memory_bytes);

}  // namespace gramian
