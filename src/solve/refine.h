// A last pass over finished codes that only ever lowers the error against the Hessian.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/parallel.h"
#include "solve/quantized.h"

namespace gramian {

// weight: f32 [N, K] as it was; hessian: f32 [K, K]; `module` as a solver left it, its codes in natural order. Lowers
//   J(Q) = tr((W - Q)(H + λI)(W - Q)ᵀ),   λ = module.damp,
// row by row, by options.refine sweeps at most: each visits every code once (kernels/solve/descent.h) and then, where
// options.refine_scales, gives every group the scale that its codes ask for, rounded to the type it is stored in. QQQ's grouped weights
// end with sweeps over the integers that its runtime multiplies with, for channel scales that stay as they are: then
// module.channel_scale is set. Groups of zeros stay zero. Sets module.refined.
void refine(QuantizedLinear& module, const at::Tensor& weight, const at::Tensor& hessian,
            const SolveOptions& options, ThreadPool& pool);

}  // namespace gramian
