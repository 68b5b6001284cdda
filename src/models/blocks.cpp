#include "models/blocks.h"

#include "tensor/ops.h"

namespace gramian {

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor inverse = wide.square().mean(-1, true).add_(eps).rsqrt_();
  return wide.mul(inverse).to(x.scalar_type()).mul(weight.to(x.scalar_type()));
}

RmsNorm load_rms_norm(const Weights& weights, const std::string& name, int64_t size, double eps) {
  const at::Tensor weight = weights.tensor(name, {size});
  return {weight.defined() ? weight.to(at::kFloat) : weight, eps};
}

Attention::Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec)
    : spec_(spec),
      q_(weights.linear(prefix + "q_proj", spec.hidden, spec.heads * spec.head_dim, spec.qkv_bias)),
      k_(weights.linear(prefix + "k_proj", spec.hidden, spec.kv_heads * spec.head_dim, spec.qkv_bias)),
      v_(weights.linear(prefix + "v_proj", spec.hidden, spec.kv_heads * spec.head_dim, spec.qkv_bias)),
      o_(weights.linear(prefix + "o_proj", spec.heads * spec.head_dim, spec.hidden, spec.o_bias)) {}

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
    const at::Tensor q = turned(heads(qkv[0], spec_.heads));
    const at::Tensor k = turned(heads(qkv[1], spec_.kv_heads));
    const at::Tensor v = heads(qkv[2], spec_.kv_heads);
    const at::Tensor mixed = tensor::causal_attention(q, k, v, spec_.scale, spec_.window);
    heads(out, spec_.heads).copy_(mixed);
  }
  return out;
}

Activation read_activation(const ConfigReader& config) {
  const std::string name = config.text_or("hidden_act", "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  throw Error(ErrorKind::unsupported, config.where(), str("hidden_act '", name, "'"),
              "known: silu, gelu, gelu_pytorch_tanh");
}

GatedMlp::GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec)
    : spec_(spec),
      gate_(weights.linear(prefix + "gate_proj", spec.hidden, spec.intermediate, spec.bias)),
      up_(weights.linear(prefix + "up_proj", spec.hidden, spec.intermediate, spec.bias)),
      down_(weights.linear(prefix + "down_proj", spec.intermediate, spec.hidden, spec.bias)) {}

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

PreNormLayer::PreNormLayer(const Weights& weights, const std::string& prefix, const AttentionSpec& attention,
                           const MlpSpec& mlp, double norm_eps)
    : input_norm_(load_rms_norm(weights, prefix + "input_layernorm.weight", attention.hidden, norm_eps)),
      post_attention_norm_(
          load_rms_norm(weights, prefix + "post_attention_layernorm.weight", attention.hidden, norm_eps)),
      attention_(weights, prefix + "self_attn.", attention),
      mlp_(weights, prefix + "mlp.", mlp) {}

Task<at::Tensor> PreNormLayer::forward(at::Tensor hidden, const BatchContext& batch) {
  at::Tensor mixed = co_await attention_.forward(input_norm_(hidden), batch);
  if (batch.tap) batch.tap("mixer_out", mixed);
  hidden = hidden.add(mixed);
  mixed.reset();
  at::Tensor mlp_out = co_await mlp_.forward(post_attention_norm_(hidden));
  if (batch.tap) batch.tap("mlp_out", mlp_out);
  co_return hidden.add(mlp_out);
}

}  // namespace gramian
