#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/small_floats.h"
#include "solve/float_grids.h"
#include "solve/grouping.h"
#include "tensor/ops.h"

namespace gramian {

QuantizedLinear solve_fp8(const at::Tensor& weight, const GridOptions& grid, ThreadPool& pool) {
  const Grouping grouping = resolve_grouping(weight, grid);
  GRAMIAN_CHECK(grouping.per_row && grid.bits == 8, "FP8 has 8 bits and one scale per row");
  const at::Tensor w = finite_weight(weight);
  QuantizedLinear result = empty_result(grouping);
  result.e4m3 = true;
  const int64_t columns = grouping.columns;
  const float* values = w.const_data_ptr<float>();
  float* scale = result.scale.mutable_data_ptr<float>();
  auto* codes = reinterpret_cast<uint8_t*>(result.codes.mutable_data_ptr<int8_t>());
  std::vector<uint8_t> zero(static_cast<size_t>(grouping.rows));
  pool.run(grouping.rows, [&](int64_t row) {
    const float* x = values + row * columns;
    float largest = 0;
    for (int64_t k = 0; k < columns; ++k) largest = std::max(largest, std::fabs(x[k]));
    zero[static_cast<size_t>(row)] = largest == 0;
    scale[row] = stored_scale((largest == 0 ? 1 : largest) / kE4m3Most, grid.scale_type);
    for (int64_t k = 0; k < columns; ++k)
      codes[row * columns + k] =
          static_cast<uint8_t>(e4m3_from_f32(std::fabs(x[k] / scale[row])) | (x[k] < 0 ? 0x80 : 0));
  });
  result.zero_groups = std::count(zero.begin(), zero.end(), 1);
  check_scales(result.scale);
  return result;
}

}  // namespace gramian
