// What every solver checks and resolves before it starts, and says of its factor at the end.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/solve/grid.h"
#include "solve/factor.h"
#include "solve/quantized.h"

namespace gramian {

struct Grouping {
  GridRule rule;
  int64_t rows = 0;        // N
  int64_t columns = 0;     // K
  int64_t group_size = 0;  // resolved: K for one scale per row
  bool per_row = false;    // configured as -1; decides the formulas, which group_size == K does not
  int64_t groups() const noexcept { return (columns + group_size - 1) / group_size; }
  int64_t width(int64_t group) const noexcept { return std::min(group_size, columns - group * group_size); }
};

// Throws invalid_argument for a weight that is not a float matrix, for bits that the grid does not have, and, on QQQ's grid,
// for a group size that does not divide K.
Grouping resolve_grouping(const at::Tensor& weight, const GridOptions& grid);
// The weight in fp32, contiguous. Throws numerical when an entry is not finite.
at::Tensor finite_weight(const at::Tensor& weight);
// Throws numerical when a scale overflowed.
void check_scales(const at::Tensor& scale);
// A result of this shape whose tensors are still to be filled; zero points are there where the grid has them, and with
// `zero_points`, at 0.
QuantizedLinear empty_result(const Grouping& grouping, bool zero_points = false);
// Up to kBlockRows rows [count, columns] as [columns][kBlockRows] (kernels/solve/block.h), zeros in the lanes beyond them.
std::vector<float> rows_to_lanes(const float* rows, int64_t count, int64_t columns);
// damp, damp_attempts, diagonal_spread and dead_columns of a result that came of this factor.
void note_factor(QuantizedLinear& result, const Factor& factor);
// A positive scale as `type` stores it; one that would vanish becomes the smallest number of the type.
float stored_scale(float scale, at::ScalarType type);

}  // namespace gramian
