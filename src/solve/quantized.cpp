#include "solve/quantized.h"

#include "tensor/ops.h"

namespace gramian {

at::Tensor QuantizedLinear::weight() const {
  const int64_t columns = codes.size(1);
  const at::Tensor group = group_index.defined()
                               ? group_index.to(at::kLong)
                               : tensor::arange(columns, at::kLong).div_(group_size, "trunc");
  const at::Tensor steps = codes.to(at::kFloat);
  if (zero.defined()) steps.sub_(zero.to(at::kFloat).index_select(1, group));
  return steps.mul_(scale.index_select(1, group));
}

}  // namespace gramian
