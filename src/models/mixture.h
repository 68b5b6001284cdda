// A mixture of experts as the MLP of a layer: a router sends each token to its top k experts.
#pragma once

#include <cstdint>
#include <string>

#include "models/blocks.h"

namespace gramian {

// Routes as Qwen 3 does: softmax over all experts in f32, the k largest, divided by their sum on request. The router
// itself, `gate`, stays as it is. Experts are stored one by one (`experts.3.gate_proj.weight`) or stacked
// (`experts.gate_up_proj` [experts, 2 · intermediate, hidden], gate's rows first; `experts.down_proj`
// [experts, hidden, intermediate]). Pauses: {experts}.
class Mixture final : public Mlp {
 public:
  // `expert`: one expert's sizes.
  Mixture(const Weights& weights, const std::string& prefix, const MlpSpec& expert, const MixtureSpec& spec);
  Task<at::Tensor> forward(at::Tensor x) override;

 private:
  Routing route(const at::Tensor& x) const;
  MixtureSpec spec_;
  at::Tensor router_;  // [experts, hidden]
  ExpertBank bank_;
};

}  // namespace gramian
