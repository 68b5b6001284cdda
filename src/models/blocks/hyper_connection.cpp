#include "models/blocks/hyper_connection.h"

#include "tensor/ops.h"

namespace gramian {

HyperConnection::HyperConnection(const Weights& weights, const std::string& name, const StreamSpec& spec)
    : spec_(spec) {
  const int64_t rows = (2 + spec.count) * spec.count;
  const at::Tensor fn = weights.tensor(name + "_fn", {rows, spec.width()});
  const at::Tensor base = weights.stored(name + "_base", {rows});
  const at::Tensor scale = weights.stored(name + "_scale", {3});
  if (weights.is_survey()) return;
  fn_ = fn.to(at::kFloat);
  base_ = base.to(at::kFloat);
  scale_ = scale.to(at::kFloat);
}

StreamPart HyperConnection::read(const at::Tensor& streams) const {
  const int64_t n = spec_.count, tokens = streams.size(0);
  const at::Tensor wide = streams.to(at::kFloat);
  const at::Tensor normed = wide.mul(wide.square().mean(-1, true).add_(spec_.norm.eps).rsqrt_());
  const at::Tensor made = tensor::linear(normed, fn_, {});
  const auto part = [&](int64_t which, int64_t begin, int64_t count) {
    return made.narrow(1, begin, count).mul(scale_[which]).add_(base_.narrow(0, begin, count));
  };
  const at::Tensor pre = tensor::sigmoid(part(0, 0, n)).add_(spec_.floor);
  const at::Tensor post = tensor::sigmoid(part(1, n, n)).mul_(2.0);
  const at::Tensor comb = part(2, 2 * n, n * n).view({tokens, n, n}).softmax(-1).add_(spec_.floor);
  at::Tensor input = wide.narrow(1, 0, spec_.hidden).mul(pre.narrow(1, 0, 1));
  for (int64_t i = 1; i < n; ++i)
    input.addcmul_(wide.narrow(1, i * spec_.hidden, spec_.hidden), pre.narrow(1, i, 1));
  return {input.to(streams.scalar_type()), post.to(streams.scalar_type()),
          doubly_stochastic(comb).to(streams.scalar_type()).to(at::kFloat)};
}

at::Tensor HyperConnection::doubly_stochastic(at::Tensor comb) const {
  const auto divide = [&](int64_t dim) { comb = comb.div(comb.sum(dim, true).add_(spec_.floor)); };
  divide(1);
  for (int64_t round = 1; round < spec_.rounds; ++round) {
    divide(2);
    divide(1);
  }
  return comb;
}

}  // namespace gramian
