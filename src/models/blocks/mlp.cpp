#include "models/blocks/mlp.h"

#include "tensor/ops.h"

namespace gramian {

Activation read_activation(const ConfigReader& config, const std::string& key) {
  const std::string name = config.text_or(key, "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  throw Error(ErrorKind::unsupported, config.where(), str(key, " '", name, "'"),
              "known: silu, gelu, gelu_pytorch_tanh");
}

GatedMlp::GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec,
                   const GatedMlpWeights& stored)
    : spec_(spec) {
  const int64_t hidden = spec.hidden, intermediate = spec.intermediate;
  if (spec.fused) {
    gate_up_ = {weights.linear(prefix + "gate_up_proj", hidden, 2 * intermediate, spec.bias)};
  } else {
    gate_up_ = {weights.linear(prefix + spec.gate, hidden, intermediate, spec.bias, stored.gate),
                weights.linear(prefix + spec.up, hidden, intermediate, spec.bias, stored.up)};
  }
  down_ = weights.linear(prefix + spec.down, intermediate, hidden, spec.bias, stored.down);
}

Task<at::Tensor> GatedMlp::forward(at::Tensor x) {
  std::vector<at::Tensor> gate_up = co_await linears(std::move(x), gate_up_);
  at::Tensor product = gated(gate_up);
  gate_up.clear();
  std::vector<at::Tensor> out = co_await linears(std::move(product), down_);
  co_return std::move(out[0]);
}

std::vector<std::vector<Linear*>> GatedMlp::pauses() {
  std::vector<std::vector<Linear*>> found(1);
  for (Linear& linear : gate_up_) found[0].push_back(&linear);
  found.push_back({&down_});
  return found;
}

at::Tensor GatedMlp::gated(const std::vector<at::Tensor>& gate_up) const {
  const auto part = [&](int64_t index) {
    return spec_.fused ? gate_up[0].narrow(-1, index * spec_.intermediate, spec_.intermediate)
                       : gate_up[static_cast<size_t>(index)];
  };
  at::Tensor gate = part(0), up = part(1);
  if (spec_.limit > 0) {
    gate = gate.clamp_max(spec_.limit);
    up = up.clamp(-spec_.limit, spec_.limit);
  }
  if (spec_.up_offset != 0) up = up.add(spec_.up_offset);
  return activated(gate).mul_(up);
}

at::Tensor GatedMlp::activated(const at::Tensor& gate) const {
  if (spec_.activation != Activation::silu)
    return tensor::gelu(gate, spec_.activation == Activation::gelu_tanh);
  if (spec_.gate_slope == 1) return tensor::silu(gate);
  return tensor::sigmoid(gate.mul(spec_.gate_slope)).mul_(gate);
}

ModuleTree gated_mlp_modules(const std::string& prefix, const MlpSpec& spec) {
  if (spec.fused) return {{prefix + "gate_up_proj"}, {prefix + spec.down}};
  return {{prefix + spec.gate, prefix + spec.up}, {prefix + spec.down}};
}

}  // namespace gramian
