// The gated delta rule (Yang et al., Gated Delta Networks, 2024) and its kin with a decay for each key channel (KDA: Kimi
// Linear, 2025), float32. A head keeps a state S [d_k, d_v]:
//   S <- diag(exp(g_t)) S;   c_t = β_t (v_t - Sᵀ k_t);   S <- S + k_t c_tᵀ;   o_t = Sᵀ q_t
// with k_t normalised here: x / sqrt(Σx² + 1e-6), and q_t too, times d_k^-1/2.
//
// The bits depend on the level and on how a row's tokens are divided among calls, not on threads, nor on other rows and heads.
// The reference level computes in float64.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

// A vector for each row, token and head; strides in elements, the numbers of a vector side by side.
struct HeadVectors {
  DType type = DType::f32;  // f32, f16 or bf16
  const void* data = nullptr;
  int64_t row_stride = 0, token_stride = 0, head_stride = 0;
};

// Key head h serves the value heads h·r ... h·r + r - 1 with r = heads / key_heads.
struct DeltaRule {
  int64_t rows = 0, tokens = 0, key_heads = 0, heads = 0, d_k = 0,
          d_v = 0;             // heads % key_heads == 0, all >= 1
  bool per_channel = false;    // how g decays
  HeadVectors q = {}, k = {};  // d_k numbers of each key head
  HeadVectors v = {};          // d_v of each head
  HeadVectors g = {};          // <= 0; one, or with per_channel d_k
  HeadVectors beta = {};       // one
  float* state = nullptr;      // [rows, heads, d_k, d_v], from before the first to after the last token
  float* out = nullptr;        // [rows, tokens, heads, d_v]
};

// What a thread takes meanwhile: O(12 (d_k + d_v) + d_k d_v) floats, whatever T.
int64_t delta_scratch_bytes(const DeltaRule& rule) noexcept;

// On `threads` threads (>= 1), which are started only when the work is worth it. Throws std::bad_alloc.
void run_delta_rule(CpuLevel level, const DeltaRule& rule, int threads);

}  // namespace gramian
