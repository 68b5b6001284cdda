// The damped inverse factor that error compensation runs on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/parallel.h"

namespace gramian {

struct Factor {
  at::Tensor upper;  // f32 [K, K], U upper triangular with Uᵀ U = (H + λI)⁻¹; undefined when nothing factored
  at::Tensor
      order;  // int64 [K], the column at each place of `upper` and `dead`; undefined where they are as in H
  at::Tensor dead;   // bool [K], columns whose H_kk is exactly 0 (their diagonal was set to 1)
  double damp = 0;   // the λ used
  int attempts = 0;  // factorizations tried
  double diagonal_spread =
      1;  // mean over median of H's diagonal without dead columns: large where few columns dominate
  bool ok() const { return upper.defined(); }
};

// hessian: f32 [K, K], symmetric, finite (throws numerical otherwise); not modified.
// λ = d · mean(diag), the mean taken after dead columns were set to 1, d = damp_percent first; when that
// fails, the smallest of damp_percent + i · damp_step < 1 that factors (found by bisection, assuming more
// damping never hurts); then, with the diagonal raised by 1e-6 · max|diag| · 10^(a-1), a = 1..6, the same
// again. With `order` (int64 [K], solve/column_order.h) the same of H with rows and columns in that order. U = R⁻¹ with H + λI = R Rᵀ, R upper triangular (kernels/factor): its bytes depend on the CPU level, not on
// `pool`, which may be null (the calling thread does it all).
Factor factorize(const at::Tensor& hessian, double damp_percent, double damp_step, ThreadPool* pool = nullptr,
                 const at::Tensor& order = {});

// Memory that factorize() needs beside a contiguous Hessian on the CPU, its result included: one more matrix and a
// packed block of its rows.
int64_t factor_bytes(int64_t columns);

}  // namespace gramian
