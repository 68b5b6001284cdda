#include "models/blocks/kimi_delta_attention.h"

#include "tensor/ops.h"

namespace gramian {

ModuleTree kimi_delta_attention_modules(const std::string& prefix) {
  return {{prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"}, {prefix + "o_proj"}};
}

KimiDeltaAttention::KimiDeltaAttention(const Weights& weights, const std::string& prefix,
                                       const KimiDeltaSpec& spec)
    : spec_(spec), memory_(weights, prefix, spec.sizes) {
  const DeltaSizes& s = spec.sizes;
  q_ = weights.linear(prefix + "q_proj", s.hidden, s.keys(), false);
  k_ = weights.linear(prefix + "k_proj", s.hidden, s.keys(), false);
  v_ = weights.linear(prefix + "v_proj", s.hidden, s.values(), false);
  o_ = weights.linear(prefix + "o_proj", s.values(), s.hidden, false);
  norm_ = load_gated_norm(weights, prefix + "o_norm", s.value_dim, spec.norm);
  const at::Tensor f_a = weights.tensor(prefix + "f_a_proj.weight", {s.value_dim, s.hidden});
  const at::Tensor g_a = weights.tensor(prefix + "g_a_proj.weight", {s.value_dim, s.hidden});
  const at::Tensor b = weights.tensor(prefix + "b_proj.weight", {s.heads, s.hidden});
  f_b_ = weights.tensor(prefix + "f_b_proj.weight", {s.keys(), s.value_dim});
  g_b_ = weights.tensor(prefix + "g_b_proj.weight", {s.values(), s.value_dim});
  const at::Tensor bias = weights.stored(prefix + "dt_bias", {s.keys()});
  // Stored with or without the dimensions that it is broadcast over.
  const std::string rate = prefix + "A_log";
  const bool flat =
      !weights.checkpoint().contains(rate) || weights.checkpoint().tensor(rate).shape.size() == 1;
  const at::Tensor log_rate =
      weights.stored(rate, flat ? std::vector<int64_t>{s.heads} : std::vector<int64_t>{1, 1, s.heads, 1});
  if (weights.is_survey()) return;
  low_ = tensor::cat({f_a, g_a, b}, 0);
  decay_ = log_rate.to(at::kFloat).exp().reshape({s.heads, 1});
  dt_bias_ = bias.to(at::kFloat);
}

Task<at::Tensor> KimiDeltaAttention::forward(at::Tensor x, const BatchContext& batch) {
  at::Tensor low = tensor::linear(x, low_, {});
  std::vector<at::Tensor> qkv = co_await linears(std::move(x), q_, k_, v_);
  at::Tensor mixed = mix(std::move(qkv), low, batch);
  low.reset();
  std::vector<at::Tensor> out = co_await linears(std::move(mixed), o_);
  co_return std::move(out[0]);
}

at::Tensor KimiDeltaAttention::log_decay(const at::Tensor& f) const {
  const at::Tensor wide =
      f.to(at::kFloat).add(dt_bias_).view({f.size(0), spec_.sizes.heads, spec_.sizes.key_dim});
  if (spec_.lower_bound) return tensor::sigmoid(wide.mul(decay_)).mul_(*spec_.lower_bound);
  return tensor::softplus(wide).mul_(decay_).neg_();
}

at::Tensor KimiDeltaAttention::mix(std::vector<at::Tensor> qkv, const at::Tensor& low,
                                   const BatchContext& batch) const {
  const int64_t rank = spec_.sizes.value_dim;
  const at::Tensor g = log_decay(tensor::linear(low.narrow(1, 0, rank), f_b_, {}));
  const at::Tensor beta = tensor::sigmoid(low.narrow(1, 2 * rank, spec_.sizes.heads).to(at::kFloat));
  const at::Tensor out = memory_.mix({.q = qkv[0], .k = qkv[1], .v = qkv[2], .g = g, .beta = beta}, batch);
  qkv.clear();
  return norm_(out, tensor::linear(low.narrow(1, rank, rank), g_b_, {}));
}

std::unique_ptr<MixerState> KimiDeltaAttention::make_state(int64_t) const { return memory_.make_state(); }

}  // namespace gramian
