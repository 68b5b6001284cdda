// The gated delta rule (Yang et al., Gated Delta Networks, 2024) and its kin with a decay for each key channel (KDA: Kimi
// Linear, 2025). A head keeps a state S [d_k, d_v] that starts at 0 where a row starts:
//   S <- diag(exp(g_t)) S;   S <- S + k_t (β_t (v_t - Sᵀ k_t))ᵀ;   o_t = Sᵀ q_t
#pragma once

#include <ATen/core/Tensor.h>

namespace gramian {

// q and k are normalised inside: x / sqrt(Σx² + 1e-6), q times d_k^-1/2. Key head h serves the value heads h·r ... h·r + r - 1
// with r = heads / key_heads.
struct DeltaRuleInput {
  at::Tensor q;     // [rows, T, key_heads, d_k], any float type, may be strided; k too
  at::Tensor k;     // [rows, T, key_heads, d_k]
  at::Tensor v;     // [rows, T, heads, d_v]
  at::Tensor g;     // f32 [rows, T, heads] or, of each key channel, [rows, T, heads, d_k]; every entry <= 0
  at::Tensor beta;  // f32 [rows, T, heads]
};

// Both forms: `state` f32 [rows, heads, d_k, d_v], contiguous, goes in place from before the first to after the last token;
// returns f32 [rows, T, heads, d_v], T >= 1.

// Token by token, as the formula stands: the reference, and what one token needs.
at::Tensor recurrent_delta_rule(const DeltaRuleInput& input, at::Tensor& state);

// Matrix products inside chunks of 64 tokens, the recurrence between chunks. With D_ij the decay from token j to token i of a
// chunk, 0 above the diagonal, and D_i0, D_Li that from the chunk's start to i and from i to its end:
//   A = strictly lower part of β K Kᵀ∘D;   V^ = (I + A)⁻¹ β (V - (K D_i0) S)
//   O = (Q D_i0) S + (Q Kᵀ∘D) V^;          S <- D_L0 S + (K D_Li)ᵀ V^
// Exponents are sums of g between two tokens and never differences of larger sums, so that nothing overflows and a strong
// decay takes no digits from its neighbours. Scratch: O(64 (d_k + d_v) + d_k d_v) numbers per row and head, whatever T.
at::Tensor chunked_delta_rule(const DeltaRuleInput& input, at::Tensor& state);

// The faster of the two.
at::Tensor delta_rule(const DeltaRuleInput& input, at::Tensor& state);

}  // namespace gramian
