// The text to read first: what every vector level of gram.h is tested against. Products are summed in float64 over
// all tokens of a call, rounded once and added.
#pragma once

#include "kernels/gram/gram.h"

namespace gramian::gram::reference {

void add_lower(const Rows& x, int64_t begin, int64_t end, float* h, int64_t h_stride, Workspace& unused);
void add_blocks(const Rows& x, int64_t begin, int64_t end, float* blocks, Workspace& unused);

}  // namespace gramian::gram::reference
