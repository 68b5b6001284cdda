#include "models/blocks/norm.h"

#include "kernels/norm/norm.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

NormForm form_of(NormKind kind) {
  switch (kind) {
    case NormKind::rms:
      return NormForm::rms;
    case NormKind::rms_offset:
      return NormForm::rms_offset;
    case NormKind::rms_once:
      return NormForm::rms_once;
    case NormKind::layer:
      break;
  }
  return NormForm::layer;
}

// One weight for every row: one pass instead of an operation of LibTorch for each step.
at::Tensor norm_by_rows(const Norm& norm, const at::Tensor& x) {
  const at::Tensor rows = x.contiguous();
  at::Tensor y = tensor::empty(x.sizes(), x.scalar_type());
  norm_rows(cpu_level(),
            {.form = form_of(norm.spec.kind),
             .type = tensor::dtype_of(x),
             .x = rows.const_data_ptr(),
             .rows = x.numel() / x.size(-1),
             .size = x.size(-1),
             .weight = norm.weight.const_data_ptr<float>(),
             .bias = norm.bias.defined() ? norm.bias.const_data_ptr<float>() : nullptr,
             .eps = static_cast<float>(norm.spec.eps)},
            y.mutable_data_ptr());
  return y;
}

bool is_by_rows(const Norm& norm, const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && norm.weight.dim() == 1 && norm.weight.size(0) == x.size(-1) &&
         norm.weight.is_contiguous() && (!norm.bias.defined() || norm.bias.is_contiguous()) &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

}  // namespace

at::Tensor Norm::operator()(const at::Tensor& x) const {
  if (!weight.defined()) return x;
  if (is_by_rows(*this, x)) return norm_by_rows(*this, x);
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
