#include "models/blocks/gated_delta_net.h"

#include "tensor/ops.h"

namespace gramian {
namespace {

// Rows of b's projection, then those of a's.
at::Tensor load_rates(const Weights& weights, const std::string& prefix, const GatedDeltaNetSpec& spec) {
  const int64_t heads = spec.sizes.heads, hidden = spec.sizes.hidden, groups = spec.sizes.key_heads;
  if (spec.projections == DeltaProjections::by_key_head) {
    const at::Tensor both = weights.tensor(prefix + "in_proj_ba.weight", {2 * heads, hidden});
    if (!both.defined()) return both;
    return both.view({groups, 2, heads / groups, hidden}).transpose(0, 1).reshape({2 * heads, hidden});
  }
  const bool joined = spec.projections == DeltaProjections::joined;
  const at::Tensor b =
      weights.tensor(prefix + (joined ? "in_proj_b.weight" : "b_proj.weight"), {heads, hidden});
  const at::Tensor a =
      weights.tensor(prefix + (joined ? "in_proj_a.weight" : "a_proj.weight"), {heads, hidden});
  return a.defined() && b.defined() ? tensor::cat({b, a}, 0) : at::Tensor();
}

// Output sizes of the projections that pause, in the order of gated_delta_net_modules().
std::vector<int64_t> widths(const GatedDeltaNetSpec& spec) {
  const int64_t keys = spec.sizes.keys(), values = spec.sizes.values();
  switch (spec.projections) {
    case DeltaProjections::by_key_head:
      return {2 * keys + 2 * values};
    case DeltaProjections::joined:
      return {2 * keys + values, values};
    case DeltaProjections::separate:
      return {keys, keys, values, values};
  }
  return {};
}

// {q, k, v, z}, each [tokens, heads · dim].
std::vector<at::Tensor> parts(const GatedDeltaNetSpec& spec, std::vector<at::Tensor> projected) {
  const int64_t keys = spec.sizes.keys(), values = spec.sizes.values(), groups = spec.sizes.key_heads;
  const int64_t tokens = projected[0].size(0);
  switch (spec.projections) {
    case DeltaProjections::by_key_head: {
      const at::Tensor grouped = projected[0].view({tokens, groups, -1});
      std::vector<at::Tensor> found;
      int64_t at = 0;
      for (const int64_t width : {keys, keys, values, values}) {
        found.push_back(grouped.narrow(2, at, width / groups).reshape({tokens, width}));
        at += width / groups;
      }
      return found;
    }
    case DeltaProjections::joined:
      return {projected[0].narrow(1, 0, keys), projected[0].narrow(1, keys, keys),
              projected[0].narrow(1, 2 * keys, values), projected[1]};
    case DeltaProjections::separate:
      return projected;
  }
  return {};
}

}  // namespace

ModuleTree gated_delta_net_modules(const std::string& prefix, const GatedDeltaNetSpec& spec) {
  switch (spec.projections) {
    case DeltaProjections::by_key_head:
      return {{prefix + "in_proj_qkvz"}, {prefix + "out_proj"}};
    case DeltaProjections::joined:
      return {{prefix + "in_proj_qkv", prefix + "in_proj_z"}, {prefix + "out_proj"}};
    case DeltaProjections::separate:
      return {{prefix + "q_proj", prefix + "k_proj", prefix + "v_proj", prefix + "g_proj"},
              {prefix + "o_proj"}};
  }
  return {};
}

GatedDeltaNet::GatedDeltaNet(const Weights& weights, const std::string& prefix, const GatedDeltaNetSpec& spec)
    : spec_(spec), rates_(load_rates(weights, prefix, spec)), memory_(weights, prefix, spec.sizes) {
  const DeltaSizes& s = spec.sizes;
  const ModuleTree names = gated_delta_net_modules(prefix, spec);
  const std::vector<int64_t> sizes = widths(spec);
  for (size_t i = 0; i < sizes.size(); ++i)
    in_.push_back(weights.linear(names[0][i], s.hidden, sizes[i], false));
  out_ = weights.linear(names[1][0], s.values(), s.hidden, false);
  const bool separate = spec.projections == DeltaProjections::separate;
  norm_ = load_gated_norm(weights, prefix + (separate ? "o_norm" : "norm"), s.value_dim, spec.norm);
  const at::Tensor log_rate = weights.stored(prefix + "A_log", {s.heads});
  const at::Tensor bias = weights.stored(prefix + "dt_bias", {s.heads});
  if (weights.is_survey()) return;
  decay_ = log_rate.to(at::kFloat).exp();
  dt_bias_ = bias.to(at::kFloat);
}

Task<at::Tensor> GatedDeltaNet::forward(at::Tensor x, const BatchContext& batch) {
  at::Tensor rates = tensor::linear(x, rates_, {});
  std::vector<at::Tensor> projected = co_await linears(std::move(x), in_);
  at::Tensor mixed = mix(std::move(projected), rates, batch);
  rates.reset();
  std::vector<at::Tensor> out = co_await linears(std::move(mixed), out_);
  co_return std::move(out[0]);
}

at::Tensor GatedDeltaNet::mix(std::vector<at::Tensor> projected, const at::Tensor& rates,
                              const BatchContext& batch) const {
  const int64_t heads = spec_.sizes.heads;
  const std::vector<at::Tensor> qkvz = parts(spec_, std::move(projected));
  const at::Tensor wide = rates.to(at::kFloat);
  const at::Tensor g = tensor::softplus(wide.narrow(1, heads, heads).add(dt_bias_)).mul_(decay_).neg_();
  const at::Tensor beta = tensor::sigmoid(wide.narrow(1, 0, heads)).mul_(spec_.beta_max);
  const at::Tensor out = memory_.mix({.q = qkvz[0], .k = qkvz[1], .v = qkvz[2], .g = g, .beta = beta}, batch);
  return norm_(out, qkvz[3]);
}

std::unique_ptr<MixerState> GatedDeltaNet::make_state(int64_t) const { return memory_.make_state(); }

}  // namespace gramian
