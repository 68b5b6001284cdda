// Σ x² per input column over the token vectors of a linear layer: the importance matrix of weighted encoders. Divided by the
// tokens it is half the diagonal of the Hessian.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/parallel.h"
#include "stats/lane_sums.h"

namespace gramian {

// One float64 [K] partial sum per lane. Squares of f32, f16 and bf16 are exact there, so `hessian_input_dtype` has no part in it.
class ImatrixAccumulator : LaneSums {
 public:
  // `rows`, `keep`, `pool` and errors as HessianAccumulator's.
  ImatrixAccumulator(int64_t in_features, int lanes);
  using LaneSums::add;
  // f64 [K], not divided by tokens().
  using LaneSums::merge;
  using LaneSums::tokens;
};

}  // namespace gramian
