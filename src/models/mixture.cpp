#include "models/mixture.h"

#include "tensor/ops.h"

namespace gramian {
namespace {

// Where expert `index` lies when experts are stacked; nothing when each has its own tensors.
std::optional<StackedExpert> stacked(const Weights& weights, const std::string& prefix, const MlpSpec& expert,
                                     int64_t experts, int64_t index) {
  const std::string gate_up = prefix + "experts.gate_up_proj";
  if (!weights.checkpoint().contains(gate_up)) return std::nullopt;
  return StackedExpert{
      {gate_up, {experts, 2 * expert.intermediate, expert.hidden}, index, 0},
      {prefix + "experts.down_proj", {experts, expert.hidden, expert.intermediate}, index, 0}};
}

}  // namespace

Mixture::Mixture(const Weights& weights, const std::string& prefix, const MlpSpec& expert,
                 const MixtureSpec& spec)
    : spec_(spec),
      router_(weights.tensor(prefix + "gate.weight", {spec.experts, expert.hidden})),
      bank_(spec.experts, weights.keeps_experts(), [=](int64_t index) -> std::shared_ptr<Expert> {
        return std::make_shared<GatedMlp>(weights, str(prefix, "experts.", index, "."), expert,
                                          stacked(weights, prefix, expert, spec.experts, index));
      }) {
  if (!weights.is_survey()) return;
  for (int64_t e = 0; e < spec.experts; ++e) bank_.open(e);
}

Routing Mixture::route(const at::Tensor& x) const {
  const at::Tensor logits = tensor::linear(x, router_, {});
  auto [weights, experts] = logits.softmax(-1, at::kFloat).topk(spec_.top_k, -1);
  if (spec_.norm_top_k) weights.div_(weights.sum(-1, true));
  return {experts, weights.to(x.scalar_type())};
}

Task<at::Tensor> Mixture::forward(at::Tensor x) {
  Routing routing = route(x);
  at::Tensor mixed = co_await experts(std::move(x), std::move(routing), bank_);
  co_return mixed;
}

}  // namespace gramian
