// Manifold-constrained hyper-connections (Xie et al., 2025) as DeepSeek-V4 and GLM 5 have them. With x the streams of a token,
// all of them normed at once, and W x the rows of pre, post and comb:
//   pre = sigmoid(s₀ · W x + b) + ε;   post = 2 · sigmoid(s₁ · W x + b);   comb = softmax of rows(s₂ · W x + b) + ε
// and comb made doubly stochastic by dividing columns, then `rounds` - 1 times rows and columns, by their sums + ε (Sinkhorn
// and Knopp 1967). A part reads Σ_i pre_i · stream_i.
#pragma once

#include <string>

#include "models/blocks/residual_streams.h"

namespace gramian {

// Tensors NAME_fn [(2 + count) · count, count · hidden], NAME_base [(2 + count) · count], NAME_scale [3]. All weights are f32.
class HyperConnection final : public StreamReader {
 public:
  HyperConnection(const Weights& weights, const std::string& name, const StreamSpec& spec);
  StreamPart read(const at::Tensor& streams) const override;

 private:
  at::Tensor doubly_stochastic(at::Tensor comb) const;
  StreamSpec spec_;
  at::Tensor fn_, base_, scale_;  // f32
};

}  // namespace gramian
