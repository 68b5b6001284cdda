// A mixture of experts as the MLP of a layer (Shazeer et al. 2017): a router sends each token to its top k experts; some
// families add an expert that every token goes to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/blocks/mlp.h"
#include "models/blocks/router.h"

namespace gramian {

// How `experts.gate_up_proj` and `experts.down_proj` stack the experts' weights; their biases, where there are any, are
// `experts.gate_up_proj_bias` and `experts.down_proj_bias` [experts, out].
enum class ExpertStack {
  rows,     // [experts, 2 · intermediate, hidden], gate's rows first; [experts, hidden, intermediate] (qwen)
  columns,  // transposed: [experts, hidden, 2 · intermediate], gate's columns first (llama4)
  columns_paired,  // transposed, the columns are gate, up, gate, up ... (gpt_oss)
};

struct MixtureSpec {
  RouterSpec router = {};  // of 0 experts: no mixture
  MlpSpec expert = {};
  ExpertStack stack = ExpertStack::rows;
  std::string shared = "";  // name of the expert of all tokens; empty: none
  MlpSpec shared_expert = {};
  bool shared_gate =
      false;  // its output is multiplied by sigmoid(g · x), g the weight [1, hidden] of SHARED_gate
};

// Experts are stored one by one (`experts.3.gate_proj.weight`) or stacked. Either way they are modules of their own, named
// like those stored one by one. Pauses: those of the shared expert, {experts}.
class Mixture final : public Mlp {
 public:
  Mixture(const Weights& weights, const std::string& prefix, const MixtureSpec& spec);
  Task<at::Tensor> forward(at::Tensor x) override;

 private:
  Router router_;
  ExpertBank bank_;
  std::unique_ptr<GatedMlp> shared_;
  at::Tensor shared_gate_;  // [1, hidden] or undefined
};

ModuleTree mixture_modules(const std::string& prefix, const MixtureSpec& spec);

}  // namespace gramian
