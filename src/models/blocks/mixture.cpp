#include "models/blocks/mixture.h"

#include "tensor/ops.h"

namespace gramian {
namespace {

// Where the parts of expert `index` lie when they are stacked.
GatedMlpWeights stacked_weights(const Weights& weights, const std::string& prefix, const MixtureSpec& spec,
                                int64_t index) {
  const int64_t inner = spec.expert.intermediate, hidden = spec.expert.hidden;
  const bool paired = spec.stack == ExpertStack::columns_paired;
  const auto part = [&](const std::string& name, int64_t rows, int64_t in) {
    StoredWeight stored;
    if (!weights.checkpoint().contains(prefix + name)) return stored;
    stored.tensor = prefix + name;
    stored.bias = prefix + name + "_bias";
    stored.transposed = spec.stack != ExpertStack::rows;
    stored.shape = stored.transposed ? std::vector{spec.router.experts, in, rows}
                                     : std::vector{spec.router.experts, rows, in};
    stored.matrix = index;
    return stored;
  };
  GatedMlpWeights found;
  found.gate = part("experts.gate_up_proj", 2 * inner, hidden);
  found.gate.row_step = paired ? 2 : 1;
  found.up = found.gate;
  found.up.first_row = paired ? 1 : inner;
  found.down = part("experts.down_proj", hidden, inner);
  return found;
}

std::string expert_prefix(const std::string& prefix, int64_t index) {
  return str(prefix, "experts.", index, ".");
}

}  // namespace

Mixture::Mixture(const Weights& weights, const std::string& prefix, const MixtureSpec& spec)
    : router_(weights, prefix, spec.expert.hidden, spec.router),
      bank_(spec.router.experts, weights.keeps_experts(), [=](int64_t index) -> std::shared_ptr<Expert> {
        return std::make_shared<GatedMlp>(weights, expert_prefix(prefix, index), spec.expert,
                                          stacked_weights(weights, prefix, spec, index));
      }) {
  if (!spec.shared.empty()) {
    shared_ = std::make_unique<GatedMlp>(weights, prefix + spec.shared + ".", spec.shared_expert);
    if (spec.shared_gate)
      shared_gate_ = weights.tensor(prefix + spec.shared + "_gate.weight", {1, spec.expert.hidden});
  }
  if (!weights.is_survey()) return;
  for (int64_t e = 0; e < spec.router.experts; ++e) bank_.open(e);
}

Task<at::Tensor> Mixture::forward(at::Tensor x) {
  Routing routing = router_.route(x);
  at::Tensor shared;
  if (shared_) {
    shared = co_await shared_->forward(x);
    if (shared_gate_.defined()) shared = tensor::sigmoid(tensor::linear(x, shared_gate_, {})).mul(shared);
  }
  at::Tensor mixed = co_await experts(std::move(x), std::move(routing), bank_);
  if (shared.defined()) mixed = mixed.add(shared);
  co_return mixed;
}

ModuleTree mixture_modules(const std::string& prefix, const MixtureSpec& spec) {
  ModuleTree tree;
  if (!spec.shared.empty()) tree = gated_mlp_modules(prefix + spec.shared + ".", spec.shared_expert);
  for (int64_t e = 0; e < spec.router.experts; ++e) {
    for (auto& group : gated_mlp_modules(expert_prefix(prefix, e), spec.expert))
      tree.push_back(std::move(group));
  }
  return tree;
}

}  // namespace gramian
