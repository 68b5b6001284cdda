#include "models/blocks/layer.h"

namespace gramian {

ResidualLayer::ResidualLayer(const Weights& weights, const std::string& prefix, int64_t hidden,
                             const LayerNorms& norms, std::unique_ptr<Mixer> mixer, std::unique_ptr<Mlp> mlp,
                             const ResidualSpec& residual)
    : residual_(residual), mixer_(std::move(mixer)), mlp_(std::move(mlp)) {
  const auto load = [&](const std::string& name) {
    return load_norm(weights, name.empty() ? "" : prefix + name, {hidden}, norms.spec);
  };
  before_attention_ = load(norms.before_attention);
  after_attention_ = load(norms.after_attention);
  if (!residual.parallel) before_mlp_ = load(norms.before_mlp);
  after_mlp_ = load(norms.after_mlp);
}

at::Tensor ResidualLayer::added(const at::Tensor& hidden, const at::Tensor& part) const {
  return hidden.add(residual_.scale == 1.0 ? part : part.mul(residual_.scale));
}

Task<at::Tensor> ResidualLayer::forward(at::Tensor hidden, const BatchContext& batch) {
  at::Tensor read = before_attention_(hidden);
  // Held while the mixer runs only where the MLP needs it.
  at::Tensor mlp_input;
  if (residual_.parallel) mlp_input = read;
  at::Tensor mixed = co_await mixer_->forward(std::move(read), batch);
  if (batch.tap) batch.tap("mixer_out", mixed);
  hidden = added(hidden, after_attention_(mixed));
  mixed.reset();
  if (!residual_.parallel) mlp_input = before_mlp_(hidden);
  at::Tensor mlp_out = co_await mlp_->forward(std::move(mlp_input));
  if (batch.tap) batch.tap("mlp_out", mlp_out);
  co_return added(hidden, after_mlp_(mlp_out));
}

}  // namespace gramian
