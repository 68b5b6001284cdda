#include "models/linear.h"

#include <optional>
#include <utility>

#include "tensor/ops.h"

namespace gramian {

DenseLinear::DenseLinear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

at::Tensor DenseLinear::forward(const at::Tensor& x) const {
  return tensor::linear(x, weight_, bias_.defined() ? std::optional(bias_) : std::nullopt);
}

}  // namespace gramian
