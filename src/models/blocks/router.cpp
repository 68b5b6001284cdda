#include "models/blocks/router.h"

#include <limits>

#include "tensor/ops.h"

namespace gramian {

Router::Router(const Weights& weights, const std::string& prefix, int64_t hidden, const RouterSpec& spec)
    : spec_(spec) {
  const std::string name = prefix + spec.name;
  weight_ = weights.tensor(name + ".weight", {spec.experts, hidden});
  if (spec.bias) bias_ = weights.tensor(name + ".bias", {spec.experts});
  if (spec.rule != RouterSpec::Rule::sigmoid) return;
  correction_ = weights.stored(name + ".e_score_correction_bias", {spec.experts});
  if (weights.is_survey()) return;
  weight_ = weight_.to(at::kFloat);
  correction_ = correction_.to(at::kFloat);
}

Routing Router::route(const at::Tensor& x) const {
  switch (spec_.rule) {
    case RouterSpec::Rule::softmax:
      return by_softmax(x);
    case RouterSpec::Rule::sigmoid:
      return by_sigmoid(x);
    case RouterSpec::Rule::softmax_of_top:
    case RouterSpec::Rule::scaled_input:
      break;
  }
  return by_top_logits(x);
}

Routing Router::by_softmax(const at::Tensor& x) const {
  const at::Tensor logits = tensor::linear(x, weight_, bias_);
  auto [weights, experts] = logits.softmax(-1, at::kFloat).topk(spec_.top_k, -1);
  if (spec_.norm_top_k) weights.div_(weights.sum(-1, true));
  return {experts, spec_.wide_weights ? weights : weights.to(x.scalar_type())};
}

Routing Router::by_sigmoid(const at::Tensor& x) const {
  const at::Tensor scores = tensor::sigmoid(tensor::linear(x.to(at::kFloat), weight_, bias_));
  const at::Tensor choice = best_groups(scores.add(correction_));
  const at::Tensor experts = std::get<1>(choice.topk(spec_.top_k, -1));
  at::Tensor weights = scores.gather(1, experts);
  if (spec_.norm_top_k) weights.div_(weights.sum(-1, true).add_(1e-20));
  return {experts, weights.mul_(spec_.scale)};
}

at::Tensor Router::best_groups(const at::Tensor& choice) const {
  if (spec_.groups == 1) return choice;
  const at::Tensor grouped = choice.view({choice.size(0), spec_.groups, spec_.experts / spec_.groups});
  const at::Tensor best_two = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const at::Tensor kept = std::get<1>(best_two.topk(spec_.top_groups, -1));
  const at::Tensor closed = tensor::full({choice.size(0), spec_.groups}, 1.0, at::kBool).scatter_(1, kept, 0);
  return grouped.masked_fill(closed.unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .view(choice.sizes());
}

Routing Router::by_top_logits(const at::Tensor& x) const {
  const at::Tensor logits = tensor::linear(x, weight_, bias_);
  const auto [top, experts] = logits.topk(spec_.top_k, -1);
  if (spec_.rule == RouterSpec::Rule::softmax_of_top) return {experts, top.softmax(-1)};
  return {experts, {}, tensor::sigmoid(logits.to(at::kFloat)).to(x.scalar_type())};
}

}  // namespace gramian
