// NVFP4: weights stay as they are, and only the scale of each block of 16 is chosen, by the error of the layer's output that it
// causes: (x - q)ᵀ H (x - q), H the block's own 16 x 16 part of Σ x xᵀ. Method: Model Optimizer's local-Hessian search.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/parallel.h"
#include "solve/quantized.h"

namespace gramian {

// weight [N, K] of any float type, K a multiple of 16. `blocks`: f32 [K / 16, 16, 16], Σ x xᵀ of the layer's inputs (its size changes
// nothing); undefined: H is the identity. `largest`: of all matrices that share a global scale, at least the weight's own.
// Throws invalid_argument for another shape, numerical for entries that are not finite.
QuantizedLinear solve_scale_search(const at::Tensor& weight, const at::Tensor& blocks, float largest,
                                   const ScaleSearch& search, ThreadPool& pool);

// The largest magnitude of a weight, which is what `largest` is made of.
float largest_magnitude(const at::Tensor& weight);

}  // namespace gramian
