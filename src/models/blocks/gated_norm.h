// The norm of a linear-attention head's output under a gate: x · rsqrt(mean(x²) + eps) · weight · act(gate).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "models/weights.h"

namespace gramian {

enum class Gate { silu, sigmoid };
struct GatedNormSpec {
  double eps = 1e-6;
  Gate gate = Gate::silu;
};

struct GatedNorm {
  at::Tensor weight;  // f32 [d]
  GatedNormSpec spec;
  // x [tokens, heads, d], gate [tokens, heads·d] -> [tokens, heads·d] in the gate's type, rounded once.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& gate) const;
};
// From tensor NAME.weight [d].
GatedNorm load_gated_norm(const Weights& weights, const std::string& name, int64_t d,
                          const GatedNormSpec& spec);

}  // namespace gramian
