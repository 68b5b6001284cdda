#include "solve/quantized.h"

#include <cmath>

#include "kernels/small_floats.h"
#include "solve/encode.h"
#include "tensor/ops.h"

namespace gramian {

const char* to_text(GridKind kind) {
  switch (kind) {
    case GridKind::qqq:
      return "qqq";
    case GridKind::integer:
      return "integer";
    case GridKind::ggml:
      return "ggml";
    case GridKind::nvfp4:
      return "nvfp4";
    case GridKind::fp8:
      return "fp8";
  }
  return "";
}

bool ScaleSearch::sound() const {
  return start > 0 && start <= stop && stop < 1e6 && step > 0 && (stop - start) / step <= 125;
}

std::vector<float> ScaleSearch::multiples() const {
  const auto count = static_cast<int64_t>(std::ceil((stop - start) / step)) + 1;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(count == 1 ? start
                                                   : start + (stop - start) * static_cast<double>(i) /
                                                                 static_cast<double>(count - 1)));
  return values;
}

at::Tensor QuantizedLinear::weight() const {
  if (codec != nullptr)
    return decode_blocks(*codec, blocks, blocks.size(1) / codec->bytes * codec->block, nullptr);
  const int64_t columns = codes.size(1);
  const at::Tensor group = group_index.defined()
                               ? group_index.to(at::kLong)
                               : tensor::arange(columns, at::kLong).div_(group_size, "trunc");
  if (e4m3 || global_scale > 0) {
    const at::Tensor values = e4m3 ? tensor::wrap(kE4m3.data(), {256}, at::kFloat, nullptr)
                                   : tensor::wrap(kE2m1.data(), {16}, at::kFloat, nullptr);
    const at::Tensor bytes = codes.view(at::kByte).to(at::kInt).flatten();
    const at::Tensor steps = values.index_select(0, bytes).view(codes.sizes());
    return steps.mul((e4m3 ? scale : scale.mul(1 / global_scale)).index_select(1, group));
  }
  const at::Tensor steps = codes.to(at::kFloat);
  if (zero.defined()) steps.sub_(zero.to(at::kFloat).index_select(1, group));
  return steps.mul_(scale.index_select(1, group));
}

}  // namespace gramian
