// Checks of what a checkpoint holds of one QQQ module: everything that is wrong is collected, nothing is trusted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/linear_format.h"

namespace gramian::qqq {

// Module `name` of N outputs and K inputs against layout_faults(), the bias that the architecture wants, and `group_size`
// as configured (-1 or 128). Scales must not be negative; a channel scale is finite, and 0 only where the row decodes to
// zeros; a ratio is finite unless its group's codes are all 0, and may round to 0; biases are finite. Decodes the codes:
// N·K bytes; mapped pages are dropped again.
ModuleCheck check_module(const Checkpoint& checkpoint, const std::string& name, int64_t n, int64_t k,
                         bool has_bias, int64_t group_size);

}  // namespace gramian::qqq
