// H = (2/n) Σ x xᵀ over the n token vectors x that a linear layer receives: GPTQ's Hessian of the layer's
// output error.
#pragma once

#include <cstdint>
#include <memory>

#include "base/parallel.h"

namespace at {
class Tensor;
}

namespace gramian {

// One fp32 [K, K] partial sum per lane, allocated when the lane first adds, accumulated in place. Lanes may
// add at the same time, several threads into the same lane too (they take turns). merge() must not run beside
// add().
class HessianAccumulator {
 public:
  HessianAccumulator(int64_t in_features, int lanes);
  ~HessianAccumulator();
  HessianAccumulator(const HessianAccumulator&) = delete;
  HessianAccumulator& operator=(const HessianAccumulator&) = delete;

  // rows: [.., K] of any float type, one token vector per index of the leading dimensions. f32, f16 and bf16 are read
  // in place (stats/gram.h says how they are multiplied), others widened to fp32 in chunks. `pool` divides the work of
  // this call (null: the calling thread alone) and changes no bits. Throws numerical, naming count and first row, when
  // a value is not finite (nothing of the batch is then added), and invalid_argument when the last dimension is not K.
  void add(int lane, const at::Tensor& rows, ThreadPool* pool = nullptr);

  // H: f32 [K, K], exactly symmetric; zeros when nothing was added. The partials are summed in lane order and
  // each is freed as it is added, so at most the result and one partial are alive beside those still to come.
  // The accumulator keeps a reference: rows added later and merged again give the H of all rows (the old H is
  // weighted by n_old / n, in a new tensor). The caller must not modify what it got.
  at::Tensor merge();

  // Token vectors added so far, merged or not.
  int64_t tokens() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gramian
