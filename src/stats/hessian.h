// H = (2/n) Σ x xᵀ over the n token vectors x that a linear layer receives: GPTQ's Hessian of the layer's
// output error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "base/log.h"
#include "base/parallel.h"
#include "stats/accumulation.h"
#include "stats/lane_sums.h"

namespace gramian {

// One fp32 [K, K] partial sum per lane. Any call may be made from several threads at the same time (stats/lane_sums.h).
class HessianAccumulator {
 public:
  // `log` (may be null) gets the warnings of `settings`; it must outlive the object.
  HessianAccumulator(int64_t in_features, int lanes, const AccumulationSettings& settings = {},
                     Log* log = nullptr);

  // rows: [.., K] of any float type, one token vector per index of the leading dimensions. f32, f16 and bf16 are read
  // in place unless the settings say otherwise, others widened to fp32 in chunks. `keep`: which tokens count, as TokenBatch takes
  // it. `pool` divides the work of this call (null: the calling thread alone) and changes no bits. Throws numerical, naming count
  // and first row, when a value that counts is not finite (nothing of the batch is then added), and invalid_argument for another
  // shape and for activations that the settings refuse.
  void add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool = nullptr);
  void add(int lane, const at::Tensor& rows, ThreadPool* pool = nullptr) { add(lane, rows, {}, pool); }

  // H: f32 [K, K], exactly symmetric; zeros when nothing was added. Result and one partial are alive at most, beside the
  // partials still to come. The accumulator keeps a reference: rows added later and merged again give the H of all rows (the old
  // H is weighted by n_old / n, in a new tensor). The caller must not modify what it got.
  at::Tensor merge();

  // Token vectors that counted so far, merged or not.
  int64_t tokens() const;

 private:
  int64_t columns_;
  LaneSums lanes_;
  mutable std::mutex merging_;
  at::Tensor merged_;  // H of `merged_tokens_` rows
  int64_t merged_tokens_ = 0;
};

}  // namespace gramian
