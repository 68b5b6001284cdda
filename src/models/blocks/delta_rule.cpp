#include "models/blocks/delta_rule.h"

#include <cmath>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "kernels/delta_rule/delta_rule.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

struct Sizes {
  int64_t rows, tokens, key_heads, heads, d_k, d_v;
  bool per_channel;
};

Sizes sizes_of(const DeltaRuleInput& input, const at::Tensor& state) {
  const Sizes s{.rows = input.v.size(0),
                .tokens = input.v.size(1),
                .key_heads = input.k.size(2),
                .heads = input.v.size(2),
                .d_k = input.k.size(3),
                .d_v = input.v.size(3),
                .per_channel = input.g.dim() == 4};
  GRAMIAN_CHECK(s.heads % s.key_heads == 0 && s.tokens > 0, "delta rule of ", s.heads, " heads over ",
                s.key_heads);
  GRAMIAN_CHECK(state.sizes() == at::IntArrayRef({s.rows, s.heads, s.d_k, s.d_v}) && state.is_contiguous(),
                "state of another shape");
  return s;
}

// x [rows, T, heads, d] -> f32 [rows · heads, T, d], a view where that is possible.
at::Tensor by_head(const at::Tensor& x) {
  return x.transpose(1, 2).to(at::kFloat).reshape({-1, x.size(1), x.size(3)});
}

// The same of q or k, normalised and times `scale`, each key head as often as value heads share it.
at::Tensor keys_of(const at::Tensor& x, const Sizes& s, double scale) {
  const at::Tensor wide = x.transpose(1, 2).to(at::kFloat);  // [rows, key_heads, T, d_k]
  const at::Tensor factor = wide.square().sum(-1, true).add_(1e-6).rsqrt_().mul_(scale);
  return wide.mul(factor).repeat_interleave(s.heads / s.key_heads, 1).view({-1, s.tokens, s.d_k});
}

// x [rows, T, heads, d], in a type and an order that the kernel reads.
at::Tensor readable(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  const at::Tensor read = known ? x : x.to(at::kFloat);
  return read.stride(3) == 1 ? read : read.contiguous();
}

HeadVectors vectors_of(const at::Tensor& x) {
  return {.type = tensor::dtype_of(x),
          .data = x.const_data_ptr(),
          .row_stride = x.stride(0),
          .token_stride = x.stride(1),
          .head_stride = x.stride(2)};
}

}  // namespace

at::Tensor recurrent_delta_rule(const DeltaRuleInput& input, at::Tensor& state) {
  const Sizes s = sizes_of(input, state);
  at::Tensor out = tensor::empty({s.rows, s.tokens, s.heads, s.d_v}, at::kFloat);
  at::Tensor flat = state.view({s.rows * s.heads, s.d_k, s.d_v});
  const at::Tensor q = keys_of(input.q, s, 1 / std::sqrt(static_cast<double>(s.d_k))),
                   k = keys_of(input.k, s, 1.0), v = by_head(input.v),
                   beta = by_head(input.beta.unsqueeze(-1)),
                   decay = by_head(s.per_channel ? input.g : input.g.unsqueeze(-1)).exp();
  for (int64_t t = 0; t < s.tokens; ++t) {
    const auto token = [&](const at::Tensor& x) { return x.narrow(1, t, 1); };
    flat.mul_(token(decay).transpose(1, 2));
    const at::Tensor change = token(v).sub(token(k).bmm(flat)).mul_(token(beta));
    flat.baddbmm_(token(k).transpose(1, 2), change);
    out.select(1, t).copy_(token(q).bmm(flat).view({s.rows, s.heads, s.d_v}));
  }
  return out;
}

at::Tensor delta_rule(const DeltaRuleInput& input, at::Tensor& state) {
  if (!input.v.is_cpu()) return recurrent_delta_rule(input, state);
  const Sizes s = sizes_of(input, state);
  at::Tensor out = tensor::empty({s.rows, s.tokens, s.heads, s.d_v}, at::kFloat);
  const at::Tensor q = readable(input.q), k = readable(input.k), v = readable(input.v),
                   g = readable(s.per_channel ? input.g : input.g.unsqueeze(-1)),
                   beta = readable(input.beta.unsqueeze(-1));
  const DeltaRule rule{.rows = s.rows,
                       .tokens = s.tokens,
                       .key_heads = s.key_heads,
                       .heads = s.heads,
                       .d_k = s.d_k,
                       .d_v = s.d_v,
                       .per_channel = s.per_channel,
                       .q = vectors_of(q),
                       .k = vectors_of(k),
                       .v = vectors_of(v),
                       .g = vectors_of(g),
                       .beta = vectors_of(beta),
                       .state = state.mutable_data_ptr<float>(),
                       .out = out.mutable_data_ptr<float>()};
  run_delta_rule(cpu_level(), rule, tensor::threads());
  return out;
}

}  // namespace gramian
