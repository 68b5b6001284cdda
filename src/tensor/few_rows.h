// A few rows times a matrix that stays as it is stored, by a kernel of ours (kernels/gemv).
#pragma once

#include "base/parallel.h"
#include "tensor/ops.h"

namespace gramian::tensor {

// x f32 [rows, k]; matrix [n, k] of f32, f16, bf16 or i8; `scales` of its rows f32 [n] or undefined -> f32 [rows, n]. Undefined where the
// kernel is not the faster way or the tensors are not its: many rows, another type or memory. `pool` may be null; the result does
// not depend on it.
at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& scales,
                            ThreadPool* pool);

}  // namespace gramian::tensor
