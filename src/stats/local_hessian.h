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
class LocalHessianAccumulator {
 public:
  // Arguments and errors of these two as HessianAccumulator's.
  LocalHessianAccumulator(int64_t in_features, int lanes, const AccumulationSettings& settings = {},
                          Log* log = nullptr);
  void add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool = nullptr);
  void add(int lane, const at::Tensor& rows, ThreadPool* pool = nullptr) { add(lane, rows, {}, pool); }

  // The sums, f32 [ceil(K / 16), 16, 16], not divided by tokens(); inputs beyond K count as zeros. Zeros when nothing was added.
  // Rows added later and merged again give the sum of all rows in a new tensor; the caller must not modify what it got.
  at::Tensor merge() { return lanes_.merge(); }
  int64_t tokens() const { return lanes_.tokens(); }

 private:
  LaneSums lanes_;
};

}  // namespace gramian
