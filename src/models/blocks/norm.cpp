#include "models/blocks/norm.h"

namespace gramian {

at::Tensor Norm::operator()(const at::Tensor& x) const {
  if (!weight.defined()) return x;
  at::Tensor wide = x.to(at::kFloat);
  if (spec.kind == NormKind::layer) wide = wide.sub(wide.mean(-1, true));
  const at::Tensor normed = wide.mul(wide.square().mean(-1, true).add_(spec.eps).rsqrt_());
  switch (spec.kind) {
    case NormKind::rms:
      return normed.to(x.scalar_type()).mul(weight.to(x.scalar_type()));
    case NormKind::rms_offset:
      return normed.mul(weight.add(1.0)).to(x.scalar_type());
    case NormKind::rms_once:
    case NormKind::layer:
      break;
  }
  at::Tensor scaled = normed.mul(weight);
  if (bias.defined()) scaled.add_(bias);
  return scaled.to(x.scalar_type());
}

Norm load_norm(const Weights& weights, const std::string& name, const std::vector<int64_t>& shape,
               const NormSpec& spec) {
  Norm norm{{}, spec};
  if (name.empty()) return norm;
  const auto load = [&](const std::string& tensor) {
    const at::Tensor values = weights.tensor(tensor, shape);
    return values.defined() ? values.to(at::kFloat) : values;
  };
  norm.weight = load(name + ".weight");
  if (spec.bias) norm.bias = load(name + ".bias");
  return norm;
}

}  // namespace gramian
