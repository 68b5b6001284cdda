#include "models/blocks/gated_norm.h"

#include "tensor/ops.h"

namespace gramian {

at::Tensor GatedNorm::operator()(const at::Tensor& x, const at::Tensor& gate) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide.mul(wide.square().mean(-1, true).add_(spec.eps).rsqrt_()).mul_(weight);
  const at::Tensor open = gate.to(at::kFloat).view(x.sizes());
  return normed.mul(spec.gate == Gate::silu ? tensor::silu(open) : tensor::sigmoid(open))
      .to(gate.scalar_type())
      .view(gate.sizes());
}

GatedNorm load_gated_norm(const Weights& weights, const std::string& name, int64_t d,
                          const GatedNormSpec& spec) {
  const at::Tensor weight = weights.stored(name + ".weight", {d});
  return {weight.defined() ? weight.to(at::kFloat) : weight, spec};
}

}  // namespace gramian
