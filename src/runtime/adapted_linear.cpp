#include "runtime/adapted_linear.h"

#include "tensor/ops.h"

namespace gramian {

AdaptedLinear::AdaptedLinear(std::shared_ptr<const LinearOp> base, const LowRank& adapter)
    : base_(std::move(base)), a_(adapter.a.mul(adapter.scale)), b_(adapter.b) {}

at::Tensor AdaptedLinear::adapted(const at::Tensor& y, const at::Tensor& x) const {
  const at::Tensor part = tensor::linear(tensor::linear(x.to(at::kFloat), a_, {}), b_, {});
  return y.to(at::kFloat).add(part).to(y.scalar_type());
}

at::Tensor AdaptedLinear::forward(const at::Tensor& x) const { return adapted(base_->forward(x), x); }

std::vector<at::Tensor> AdaptedLinear::forward_together(const std::vector<const LinearOp*>& ops,
                                                        const at::Tensor& x) const {
  std::vector<const LinearOp*> bases;
  for (const LinearOp* op : ops) {
    const auto* with = dynamic_cast<const AdaptedLinear*>(op);
    bases.push_back(with == nullptr ? op : with->base_.get());
  }
  std::vector<at::Tensor> outputs = bases[0]->forward_together(bases, x);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (const auto* with = dynamic_cast<const AdaptedLinear*>(ops[i]))
      outputs[i] = with->adapted(outputs[i], x);
  }
  return outputs;
}

}  // namespace gramian
