// The text to read first, and the level for processors without vector variants: number by number, in float64.
#pragma once

#include "kernels/delta_rule/delta_rule.h"

namespace gramian::reference {

void run_delta_head(const DeltaRule& rule, int64_t row, int64_t head);

}  // namespace gramian::reference
