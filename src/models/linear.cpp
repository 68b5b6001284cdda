#include "models/linear.h"

#include "tensor/ops.h"

namespace gramian {

std::vector<at::Tensor> LinearOp::forward_together(const std::vector<const LinearOp*>& ops,
                                                   const at::Tensor& x) const {
  std::vector<at::Tensor> outputs;
  outputs.reserve(ops.size());
  for (const LinearOp* op : ops) outputs.push_back(op->forward(x));
  return outputs;
}

DenseLinear::DenseLinear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

at::Tensor DenseLinear::forward(const at::Tensor& x) const {
  std::optional<at::Tensor> bias;
  if (bias_.defined()) bias = bias_;
  return tensor::linear(x, weight_, bias);
}

}  // namespace gramian
