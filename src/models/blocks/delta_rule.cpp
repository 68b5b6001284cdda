#include "models/blocks/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kChunk = 64;

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

// Tokens [begin, begin + count) of x [rows, T, heads, d] -> f32 [rows · heads, count, d], a view where that is possible.
at::Tensor part(const at::Tensor& x, int64_t begin, int64_t count) {
  return x.narrow(1, begin, count).transpose(1, 2).to(at::kFloat).reshape({-1, count, x.size(3)});
}

// The same of q or k, normalised and times `scale`, into `to`, each key head as often as value heads share it.
void put_keys(const at::Tensor& x, const Sizes& s, int64_t begin, double scale, at::Tensor to) {
  const int64_t count = to.size(1);
  at::Tensor keys =
      x.narrow(1, begin, count).transpose(1, 2).to(at::kFloat);  // [rows, key_heads, count, d_k]
  const at::Tensor factor = keys.square().sum(-1, true).add_(1e-6).rsqrt_().mul_(scale);
  to.view({s.rows, s.key_heads, s.heads / s.key_heads, count, s.d_k}).copy_(keys.mul(factor).unsqueeze(2));
}

// One chunk, N = rows · heads problems side by side. Each token's k and q stand together, so that one product serves both.
struct Chunk {
  at::Tensor kq;    // [N, L, 2, d_k]
  at::Tensor v;     // [N, L, d_v]
  at::Tensor g;     // [N, L, 1 or d_k]
  at::Tensor beta;  // [N, L, 1]
  at::Tensor k() const { return kq.select(2, 0); }
  at::Tensor q() const { return kq.select(2, 1); }
};

// Tokens [begin, begin + count), and up to `length` such as change nothing: of k = 0, β = 0 and no decay.
Chunk cut(const DeltaRuleInput& input, const Sizes& s, int64_t begin, int64_t count, int64_t length) {
  const int64_t n = s.rows * s.heads;
  const at::Tensor g = s.per_channel ? input.g : input.g.unsqueeze(-1);
  Chunk chunk{tensor::empty({n, length, 2, s.d_k}, at::kFloat), part(input.v, begin, count),
              part(g, begin, count), part(input.beta.unsqueeze(-1), begin, count)};
  put_keys(input.k, s, begin, 1.0, chunk.k().narrow(1, 0, count));
  put_keys(input.q, s, begin, 1 / std::sqrt(static_cast<double>(s.d_k)), chunk.q().narrow(1, 0, count));
  if (count == length) return chunk;
  chunk.kq.narrow(1, count, length - count).zero_();
  for (at::Tensor* x : {&chunk.v, &chunk.g, &chunk.beta})
    *x = tensor::cat({*x, tensor::zeros({n, length - count, x->size(2)}, at::kFloat)}, 1);
  return chunk;
}

// Decays of a chunk and the products of its tokens under them.
struct Products {
  at::Tensor from_start;  // [N, L, 1 or d_k], D_i0, token i's own decay included
  at::Tensor to_end;      // [N, L, 1 or d_k], D_Li
  at::Tensor with_k;      // [N, L, 2, L]: K Kᵀ∘D, on and above the diagonal anything; Q Kᵀ∘D, 0 above it
};

// exp, without the denormal numbers that cost a hundred times as much as others; what is that small is nothing.
at::Tensor decay_of(const at::Tensor& sums) { return sums.clamp_min(-80).exp_(); }

// One decay a token: sums in f64, whose differences are good to f32 whatever stands before them.
Products products_of_heads(const Chunk& chunk) {
  const int64_t n = chunk.v.size(0), length = chunk.v.size(1);
  const at::Tensor sums = chunk.g.to(at::kDouble).cumsum(1);
  const auto wide = [](const at::Tensor& exponents) { return decay_of(exponents.to(at::kFloat)); };
  const at::Tensor decay = wide(sums.sub(sums.transpose(1, 2)).clamp_max_(0)).tril_();
  at::Tensor with_k =
      chunk.kq.view({n, 2 * length, -1}).bmm(chunk.k().transpose(1, 2)).view({n, length, 2, length});
  with_k.mul_(decay.unsqueeze(2));
  return {wide(sums), wide(sums.narrow(1, length - 1, 1).sub(sums)), with_k};
}

// A decay a channel stands inside the products. The pairs (i, j) of which i lies in the second and j in the first half of a
// block of 2, 4, 8... tokens have the block's middle between them: exp(Σ middle..i) goes with row i, exp(Σ j..middle) with
// row j, and both sums are made of <= 0 entries only. `before` and `after` hold them for the blocks so far; two blocks join by
// adding the other one's whole sum. L is a power of two.
Products products_of_channels(const Chunk& chunk) {
  const int64_t n = chunk.g.size(0), length = chunk.g.size(1), d_k = chunk.g.size(2);
  at::Tensor before =
      chunk.g.clone(at::MemoryFormat::Contiguous);                // Σ from the block's start to i, i included
  at::Tensor after = tensor::zeros(chunk.g.sizes(), at::kFloat);  // Σ behind j to the block's end
  at::Tensor with_k = tensor::zeros({n, length, 2, length}, at::kFloat);
  with_k.select(2, 1).diagonal(0, 1, 2).copy_(chunk.q().mul(chunk.k()).sum(-1));
  for (int64_t size = 1; size < length; size *= 2) {
    const int64_t blocks = length / (2 * size);
    const auto half = [&](const at::Tensor& x, int64_t which) {
      return x.view({n * blocks, 2, size, -1}).select(1, which);
    };
    const at::Tensor rows = chunk.kq.view({n * blocks, 2, size, 2, d_k}).select(1, 1);
    const at::Tensor decayed_rows =
        rows.mul(decay_of(half(before, 1)).unsqueeze(2)).view({n * blocks, 2 * size, d_k});
    const at::Tensor columns = chunk.kq.view({n * blocks, 2, size, 2, d_k}).select(1, 0).select(2, 0);
    const at::Tensor decayed_columns = columns.mul(decay_of(half(after, 0)));
    // The lower left quarter of each block on the diagonal of with_k.
    with_k
        .as_strided({n, blocks, 2 * size, size},
                    {2 * length * length, 2 * size * (2 * length + 1), length, 1}, 2 * size * length)
        .copy_(decayed_rows.bmm(decayed_columns.transpose(1, 2)).view({n, blocks, 2 * size, size}));
    const at::Tensor first = half(before, 0).narrow(1, size - 1, 1),
                     second = half(before, 1).narrow(1, size - 1, 1);
    half(after, 0).add_(second);
    half(before, 1).add_(first);
  }
  return {decay_of(before), decay_of(after), with_k};
}

// O [N, L, d_v] of a chunk; `state` [N, d_k, d_v] in place.
at::Tensor run_chunk(const Chunk& chunk, at::Tensor state) {
  const int64_t n = chunk.v.size(0), length = chunk.v.size(1), d_v = chunk.v.size(2);
  const Products p = chunk.g.size(2) == 1 ? products_of_heads(chunk) : products_of_channels(chunk);
  const at::Tensor seen =
      chunk.kq.mul(p.from_start.unsqueeze(2)).view({n, 2 * length, -1}).bmm(state).view({n, length, 2, d_v});
  const at::Tensor fresh = tensor::solve_triangular(p.with_k.select(2, 0).mul(chunk.beta),
                                                    chunk.v.sub(seen.select(2, 0)).mul_(chunk.beta),
                                                    /*upper=*/false, /*unit_diagonal=*/true);
  at::Tensor out = seen.select(2, 1).baddbmm(p.with_k.select(2, 1), fresh);
  // [N, 1, 1 or d_k] -> one factor for each row of the state.
  state.mul_(p.from_start.narrow(1, length - 1, 1).transpose(1, 2));
  state.baddbmm_(chunk.k().mul(p.to_end).transpose(1, 2), fresh);
  return out;
}

}  // namespace

at::Tensor recurrent_delta_rule(const DeltaRuleInput& input, at::Tensor& state) {
  const Sizes s = sizes_of(input, state);
  at::Tensor out = tensor::empty({s.rows, s.tokens, s.heads, s.d_v}, at::kFloat);
  at::Tensor flat = state.view({s.rows * s.heads, s.d_k, s.d_v});
  const Chunk all = cut(input, s, 0, s.tokens, s.tokens);
  const at::Tensor decay = all.g.exp();
  for (int64_t t = 0; t < s.tokens; ++t) {
    const auto token = [&](const at::Tensor& x) { return x.narrow(1, t, 1); };
    flat.mul_(token(decay).transpose(1, 2));
    const at::Tensor change = token(all.v).sub(token(all.k()).bmm(flat)).mul_(token(all.beta));
    flat.baddbmm_(token(all.k()).transpose(1, 2), change);
    out.select(1, t).copy_(token(all.q()).bmm(flat).view({s.rows, s.heads, s.d_v}));
  }
  return out;
}

at::Tensor chunked_delta_rule(const DeltaRuleInput& input, at::Tensor& state) {
  const Sizes s = sizes_of(input, state);
  at::Tensor out = tensor::empty({s.rows, s.tokens, s.heads, s.d_v}, at::kFloat);
  const at::Tensor flat = state.view({s.rows * s.heads, s.d_k, s.d_v});
  for (int64_t begin = 0; begin < s.tokens; begin += kChunk) {
    const int64_t count = std::min(kChunk, s.tokens - begin);
    int64_t length = 1;
    while (length < count) length *= 2;
    const at::Tensor mixed = run_chunk(cut(input, s, begin, count, length), flat);
    out.narrow(1, begin, count)
        .copy_(mixed.view({s.rows, s.heads, length, s.d_v}).narrow(2, 0, count).transpose(1, 2));
  }
  return out;
}

at::Tensor delta_rule(const DeltaRuleInput& input, at::Tensor& state) {
  return input.v.size(1) == 1 ? recurrent_delta_rule(input, state) : chunked_delta_rule(input, state);
}

}  // namespace gramian
