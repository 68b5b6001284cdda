// Σ x² per input column over the token vectors of a linear layer: the importance matrix of weighted encoders. Divided by the
// tokens it is half the diagonal of the Hessian.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/parallel.h"
#include "stats/lane_sums.h"

namespace gramian {

// One float64 [K] partial sum per lane. Squares of f32, f16 and bf16 are exact there, so `hessian_input_dtype` has no part in it.
class ImatrixAccumulator {
 public:
  // `rows`, `keep`, `pool` and errors as HessianAccumulator's.
  ImatrixAccumulator(int64_t in_features, int lanes);
  void add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool = nullptr);
  void add(int lane, const at::Tensor& rows, ThreadPool* pool = nullptr) { add(lane, rows, {}, pool); }

  // f64 [K], not divided by tokens(); zeros when nothing was added. Rows added later and merged again give the sum of all rows in
  // a new tensor; the caller must not modify what it got.
  at::Tensor merge() { return lanes_.merge(); }
  int64_t tokens() const { return lanes_.tokens(); }

 private:
  LaneSums lanes_;
};

}  // namespace gramian
