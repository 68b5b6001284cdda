// Σ x_b x_bᵀ over the token vectors of a linear layer, for each block b of 16 of its inputs: what a choice of block scales
// is weighted with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/log.h"
#include "base/parallel.h"
#include "stats/accumulation.h"
#include "stats/lane_sums.h"

namespace gramian {

// One fp32 [ceil(K / 16), 16, 16] partial sum per lane, made at the lane's first token.
class LocalHessianAccumulator : LaneSums {
 public:
  // Arguments and errors of this and add() as HessianAccumulator's.
  LocalHessianAccumulator(int64_t in_features, int lanes, const AccumulationSettings& settings = {},
                          Log* log = nullptr);
  using LaneSums::add;
  // f32 [ceil(K / 16), 16, 16], not divided by tokens(); inputs beyond K count as zeros.
  using LaneSums::merge;
  using LaneSums::tokens;
};

}  // namespace gramian
