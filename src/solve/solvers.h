// Solvers on integer grids: round to nearest, and GPTQ's error compensation.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/parallel.h"
#include "solve/factor.h"
#include "solve/quantized.h"

namespace gramian {

// weight: [N, K] of any float type. Plain rounding on the grid; needs no statistics.
QuantizedLinear solve_rtn(const at::Tensor& weight, const GridOptions& grid, ThreadPool& pool);

// GPTQ (Frantar et al. 2022): columns in the factor's order, blocks of 128, scales of a group taken
// from the weights that already carry the errors of finished blocks. `factor` of the modules' common input
// may be shared by all its readers; `tokens` > 0 is the number of token rows behind it. factor.ok() must
// hold, and factor.order be what options.order says.
QuantizedLinear solve_gptq(const at::Tensor& weight, const Factor& factor, int64_t tokens,
                           const SolveOptions& options, ThreadPool& pool);

}  // namespace gramian
