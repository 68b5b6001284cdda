// Solvers on grids of floats. Their scales are chosen from the weights as they are (NVFP4's by solve/scale_search.h) and stay: error
// compensation then chooses codes alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/parallel.h"
#include "solve/factor.h"
#include "solve/quantized.h"

namespace gramian {

// weight [N, K] of any float type -> E4M3 codes and one scale per row, its largest magnitude / 448 rounded to grid.scale_type. What the rounded
// scale puts beyond the range becomes 448. Rows of zeros: a scale of 1 / 448. Throws numerical for entries that are not finite.
QuantizedLinear solve_fp8(const at::Tensor& weight, const GridOptions& grid, ThreadPool& pool);

// GPTQ's recursion (solve/solvers.h) over the columns of `weight` [N, K] in the factor's order, each rounded to nearest on the grid that
// `rounded` has of it: its codes are chosen again, its scales stay. Groups of weights that are all zero stay zero. factor.ok(),
// `tokens` > 0 is the number of token rows behind it. Method: Model Optimizer's GPTQ on grids calibrated before it.
void compensate_floats(QuantizedLinear& rounded, const at::Tensor& weight, const Factor& factor,
                       int64_t tokens, ThreadPool& pool);

}  // namespace gramian
