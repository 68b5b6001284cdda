// Coordinate descent over the codes of one block of columns and kBlockRows rows, which do not depend on each other. Data lies
// transposed, [columns][kBlockRows], so that the rows fill the vector lanes; nothing is contracted, so the bits are the same at
// every CPU level.
//
// Of J(Q) = tr((W - Q) H (W - Q)ᵀ), with G = (W - Q) H, a step d of one weight q_j changes J by d² H_jj - 2 d G_j: least at
// d = G_j / H_jj, so the best code is the one whose weight lies nearest to q_j + G_j / H_jj. The step turns G into G - d H_j.
// Columns are visited in order, each once, and none makes J larger (QuantEase, Behdin et al. 2023).
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/solve/product.h"

namespace gramian {

struct DescentBlock {
  int64_t columns = 0;              // 1 .. kBlockColumns
  const float* gradient = nullptr;  // G of the block, [columns][kBlockRows]
  const float* hessian = nullptr;   // H of the block, hessian[i · kBlockColumns + j], symmetric
  const int32_t* group = nullptr;   // [columns], the group of each column
  const float* scale = nullptr;     // [groups][kBlockRows], finite, not 0
  // Smallest and largest code - zero, [groups][kBlockRows], integers.
  const float* least = nullptr;
  const float* most = nullptr;
  // Weights of two scales (QQQ): rne(code · ratio) · channel instead of code · scale, where `scale` is about their product.
  // ratio [groups][kBlockRows] and channel [kBlockRows]; null otherwise.
  const float* ratio = nullptr;
  const float* channel = nullptr;
  float* codes = nullptr;  // in and out, [columns][kBlockRows], code - zero
  float* step = nullptr;   // out, [columns][kBlockRows], new weight - old weight
};

// One visit of each column. Columns with H_jj = 0 stay. Returns the number of codes that changed, in all kBlockRows lanes.
int64_t descend(const DescentBlock& block, CpuLevel level) noexcept;
// The same a row and a column at a time: what the above is tested against.
int64_t descend_reference(const DescentBlock& block) noexcept;

}  // namespace gramian
