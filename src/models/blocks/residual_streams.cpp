#include "models/blocks/residual_streams.h"

#include "models/blocks/gated_streams.h"
#include "models/blocks/hyper_connection.h"
#include "tensor/ops.h"

namespace gramian {

std::unique_ptr<StreamReader> load_stream_reader(const Weights& weights, const std::string& name,
                                                 const StreamSpec& spec) {
  if (spec.kind == StreamSpec::Kind::hyper) return std::make_unique<HyperConnection>(weights, name, spec);
  return std::make_unique<GatedStreams>(weights, name, spec);
}

at::Tensor written(const at::Tensor& streams, const StreamPart& part, const at::Tensor& out) {
  const int64_t tokens = out.size(0), hidden = out.size(1), count = part.write.size(1);
  at::Tensor next = tensor::empty({tokens, count, hidden}, streams.scalar_type());
  const auto stream = [&](int64_t i) { return streams.narrow(1, i * hidden, hidden); };
  for (int64_t j = 0; j < count; ++j) {
    const at::Tensor added = out.mul(part.write.narrow(1, j, 1));
    if (!part.mix.defined()) {
      next.select(1, j).copy_(stream(j).add(added));
      continue;
    }
    const at::Tensor weights = part.mix.select(2, j);
    at::Tensor sum = stream(0).to(at::kFloat).mul(weights.narrow(1, 0, 1));
    for (int64_t i = 1; i < count; ++i) sum.addcmul_(stream(i).to(at::kFloat), weights.narrow(1, i, 1));
    next.select(1, j).copy_(sum.to(streams.scalar_type()).add_(added));
  }
  return next.view({tokens, count * hidden});
}

Norm load_stream_norm(const Weights& weights, const std::string& name, const StreamSpec& spec) {
  Norm norm = load_norm(weights, name, {spec.width()}, spec.norm);
  if (norm.weight.defined()) norm.weight = norm.weight.view({spec.count, spec.hidden});
  return norm;
}

}  // namespace gramian
