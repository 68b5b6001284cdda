#include "models/blocks/gated_streams.h"

#include "tensor/ops.h"

namespace gramian {

StreamGate::StreamGate(const Weights& weights, const std::string& name, const StreamSpec& spec)
    : spec_(spec),
      norm_(load_stream_norm(weights, name + ".hc_norm", spec)),
      down_(weights.tensor(name + ".input_mix_weight_down.weight", {spec.rank, spec.width()})),
      up_(weights.tensor(name + ".input_mix_weight_up.weight", {spec.width(), spec.rank})) {}

at::Tensor StreamGate::normed(const at::Tensor& streams) const {
  return norm_(streams.view({streams.size(0), spec_.count, spec_.hidden})).view(streams.sizes());
}

at::Tensor StreamGate::mixed(const at::Tensor& normed) const {
  const at::Tensor low =
      tensor::silu(tensor::linear(normed, down_, {}).div_(static_cast<double>(spec_.count)));
  const at::Tensor open = tensor::sigmoid(tensor::linear(low, up_, {}));
  return open.mul(normed).view({normed.size(0), spec_.count, spec_.hidden}).mean(1);
}

GatedStreams::GatedStreams(const Weights& weights, const std::string& name, const StreamSpec& spec)
    : gate_(weights, name, spec),
      inject_(weights.tensor(name + ".block_inject_weight.weight", {spec.count, spec.width()})) {}

StreamPart GatedStreams::read(const at::Tensor& streams) const {
  const at::Tensor normed = gate_.normed(streams);
  const auto count = static_cast<double>(inject_.size(0));
  return {
      gate_.mixed(normed), tensor::sigmoid(tensor::linear(normed, inject_, {}).div_(count)).mul_(2.0), {}};
}

}  // namespace gramian
