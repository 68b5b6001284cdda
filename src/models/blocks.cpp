#include "models/blocks.h"

#include "models/kv_state.h"
#include "tensor/ops.h"

namespace gramian {

at::Tensor Norm::operator()(const at::Tensor& x) const {
  if (!weight.defined()) return x;
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide.mul(wide.square().mean(-1, true).add_(spec.eps).rsqrt_());
  if (spec.kind == NormKind::rms_offset) return normed.mul(weight.add(1.0)).to(x.scalar_type());
  return normed.to(x.scalar_type()).mul(weight.to(x.scalar_type()));
}

Norm load_norm(const Weights& weights, const std::string& name, int64_t size, const NormSpec& spec) {
  if (name.empty()) return {{}, spec};
  const at::Tensor weight = weights.tensor(name, {size});
  return {weight.defined() ? weight.to(at::kFloat) : weight, spec};
}

Attention::Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec)
    : spec_(spec),
      q_(weights.linear(prefix + "q_proj", spec.hidden, spec.heads * spec.head_dim, spec.qkv_bias)),
      k_(weights.linear(prefix + "k_proj", spec.hidden, spec.kv_heads * spec.head_dim, spec.qkv_bias)),
      v_(weights.linear(prefix + "v_proj", spec.hidden, spec.kv_heads * spec.head_dim, spec.qkv_bias)),
      o_(weights.linear(prefix + "o_proj", spec.heads * spec.head_dim, spec.hidden, spec.o_bias)) {
  if (!spec.qk_norm) return;
  q_norm_ = load_norm(weights, prefix + "q_norm.weight", spec.head_dim, *spec.qk_norm);
  k_norm_ = load_norm(weights, prefix + "k_norm.weight", spec.head_dim, *spec.qk_norm);
}

Task<at::Tensor> Attention::forward(at::Tensor x, const BatchContext& batch) {
  std::vector<at::Tensor> qkv = co_await linears(std::move(x), q_, k_, v_);
  at::Tensor mixed = attend(std::move(qkv), batch);
  std::vector<at::Tensor> out = co_await linears(std::move(mixed), o_);
  co_return std::move(out[0]);
}

at::Tensor Attention::attend(std::vector<at::Tensor> qkv, const BatchContext& batch) const {
  at::Tensor out = tensor::empty({batch.tokens, spec_.heads * spec_.head_dim}, qkv[0].scalar_type());
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const auto heads = [&](const at::Tensor& x, int64_t count) {
      return x.narrow(0, run.begin, run.rows * run.length)
          .view({run.rows, run.length, count, spec_.head_dim})
          .transpose(1, 2);
    };
    const auto turned = [&](const at::Tensor& x) {
      return spec_.rope ? apply_rope(x, batch.rope[*spec_.rope][i]) : x;
    };
    const at::Tensor q = turned(q_norm_(heads(qkv[0], spec_.heads)));
    at::Tensor k = turned(k_norm_(heads(qkv[1], spec_.kv_heads)));
    at::Tensor v = heads(qkv[2], spec_.kv_heads);
    if (!batch.states.empty()) {
      auto* state = dynamic_cast<KvState*>(batch.states[i]);
      GRAMIAN_CHECK(state != nullptr, "another layer's state");
      std::tie(k, v) = state->append(k, v);
    }
    const at::Tensor mixed = tensor::causal_attention(
        q, k, v, {.scale = spec_.scale, .window = spec_.window, .softcap = spec_.softcap});
    heads(out, spec_.heads).copy_(mixed);
  }
  return out;
}

std::unique_ptr<MixerState> Attention::make_state(int64_t tokens_max) const {
  return std::make_unique<KvState>(spec_.window, tokens_max);
}

std::unique_ptr<MixerState> DecoderLayer::make_state(int64_t) const {
  throw Error(ErrorKind::unsupported, "generation", "this kind of layer keeps no state of earlier tokens");
}

std::unique_ptr<MixerState> ResidualLayer::make_state(int64_t tokens_max) const {
  return attention_.make_state(tokens_max);
}

Activation read_activation(const ConfigReader& config, const std::string& key) {
  const std::string name = config.text_or(key, "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  throw Error(ErrorKind::unsupported, config.where(), str(key, " '", name, "'"),
              "known: silu, gelu, gelu_pytorch_tanh");
}

GatedMlp::GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec,
                   const std::optional<StackedExpert>& stacked)
    : spec_(spec) {
  const int64_t hidden = spec.hidden, intermediate = spec.intermediate;
  StoredWeight gate, up, down;
  if (stacked) {
    gate = up = stacked->gate_up;
    up.first_row = intermediate;
    down = stacked->down;
  }
  gate_ = weights.linear(prefix + "gate_proj", hidden, intermediate, spec.bias, gate);
  up_ = weights.linear(prefix + "up_proj", hidden, intermediate, spec.bias, up);
  down_ = weights.linear(prefix + "down_proj", intermediate, hidden, spec.bias, down);
}

Task<at::Tensor> GatedMlp::forward(at::Tensor x) {
  std::vector<at::Tensor> gate_up = co_await linears(std::move(x), gate_, up_);
  at::Tensor product = gated(std::move(gate_up));
  std::vector<at::Tensor> out = co_await linears(std::move(product), down_);
  co_return std::move(out[0]);
}

at::Tensor GatedMlp::gated(std::vector<at::Tensor> gate_up) const {
  at::Tensor active = spec_.activation == Activation::silu
                          ? tensor::silu(gate_up[0])
                          : tensor::gelu(gate_up[0], spec_.activation == Activation::gelu_tanh);
  return active.mul_(gate_up[1]);
}

ResidualLayer::ResidualLayer(const Weights& weights, const std::string& prefix,
                             const AttentionSpec& attention, std::unique_ptr<Mlp> mlp,
                             const LayerNorms& norms)
    : attention_(weights, prefix + "self_attn.", attention), mlp_(std::move(mlp)) {
  const auto load = [&](const std::string& name) {
    return load_norm(weights, name.empty() ? "" : prefix + name + ".weight", attention.hidden, norms.spec);
  };
  before_attention_ = load(norms.before_attention);
  after_attention_ = load(norms.after_attention);
  before_mlp_ = load(norms.before_mlp);
  after_mlp_ = load(norms.after_mlp);
}

Task<at::Tensor> ResidualLayer::forward(at::Tensor hidden, const BatchContext& batch) {
  at::Tensor mixed = co_await attention_.forward(before_attention_(hidden), batch);
  if (batch.tap) batch.tap("mixer_out", mixed);
  hidden = hidden.add(after_attention_(mixed));
  mixed.reset();
  at::Tensor mlp_out = co_await mlp_->forward(before_mlp_(hidden));
  if (batch.tap) batch.tap("mlp_out", mlp_out);
  co_return hidden.add(after_mlp_(mlp_out));
}

}  // namespace gramian
