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

// Both: `state` f32 [rows, heads, d_k, d_v], contiguous, goes in place from before the first to after the last token;
// returns f32 [rows, T, heads, d_v], T >= 1.

// Token by token in LibTorch's operations, as the formula stands: what other devices than the CPU run.
at::Tensor recurrent_delta_rule(const DeltaRuleInput& input, at::Tensor& state);

// The kernel (kernels/delta_rule) on the CPU, with LibTorch's number of threads; else the above.
at::Tensor delta_rule(const DeltaRuleInput& input, at::Tensor& state);

}  // namespace gramian
