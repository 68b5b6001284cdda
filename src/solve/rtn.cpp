#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/solve/grid.h"
#include "solve/grouping.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {

QuantizedLinear solve_rtn(const at::Tensor& weight, const GridOptions& grid, ThreadPool& pool) {
  constexpr int64_t kRows = 64;
  const Grouping grouping = resolve_grouping(weight, grid);
  const at::Tensor w = finite_weight(weight);
  const GridScaler scaler(grouping.rule, cpu_level());
  QuantizedLinear result = empty_result(grouping);
  const float* values = w.const_data_ptr<float>();
  float* scale = result.scale.mutable_data_ptr<float>();
  int8_t* zero = result.zero.defined() ? result.zero.mutable_data_ptr<int8_t>() : nullptr;
  auto* codes = result.codes.mutable_data_ptr<int8_t>();
  const int64_t chunks = (grouping.rows + kRows - 1) / kRows;
  std::vector<int64_t> zero_groups(chunks);
  pool.run(chunks, [&](int64_t chunk) {
    const int64_t first = chunk * kRows;
    const int64_t last = std::min(first + kRows, grouping.rows);
    for (int64_t group = 0; group < grouping.groups(); ++group) {
      const int64_t column = group * grouping.group_size, width = grouping.width(group);
      const int64_t at = first * grouping.groups() + group;
      zero_groups[chunk] +=
          scaler.scales(values + first * grouping.columns + column, grouping.columns, last - first, width,
                        scale + at, grouping.groups(), zero == nullptr ? nullptr : zero + at);
      for (int64_t row = first; row < last; ++row) {
        const int64_t place = row * grouping.groups() + group;
        scale[place] = stored_scale(scale[place], grid.scale_type);
        quantize(values + row * grouping.columns + column, width, scale[place],
                 zero == nullptr ? 0 : zero[place], grouping.rule, codes + row * grouping.columns + column);
      }
    }
  });
  for (const int64_t count : zero_groups) result.zero_groups += count;
  check_scales(result.scale);
  return result;
}

}  // namespace gramian
