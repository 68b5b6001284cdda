// Attention of the token that is decoded, by a kernel of ours (kernels/attention).
#pragma once

#include "base/parallel.h"
#include "tensor/ops.h"

namespace gramian::tensor {

// causal_attention of single queries, q [B, heads, 1, d]; undefined where the rule or the tensors are not the kernel's: softcap, sinks,
// closed keys, another type or memory. k and v may be f16 or bf16 where q is f32. `pool` may be null.
at::Tensor one_query_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionRule& rule, ThreadPool* pool);

}  // namespace gramian::tensor
