#include "stats/hessian.h"

#include "tensor/ops.h"

namespace gramian {

HessianAccumulator::HessianAccumulator(int64_t in_features, int lanes, const AccumulationSettings& settings,
                                       Log* log)
    : columns_(in_features),
      lanes_({.columns = in_features,
              .shape = {in_features, in_features},
              .add =
                  [settings, log](const at::Tensor& sum, const TokenBatch& batch, GramWorkspaces& workspaces,
                                  ThreadPool* pool) {
                    add_gram(sum, batch, resolve(settings, batch, log), workspaces, pool,
                             gram_form(batch.rows()));
                  }},
             lanes) {}

void HessianAccumulator::add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool) {
  lanes_.add(lane, rows, keep, pool);
}

int64_t HessianAccumulator::tokens() const {
  const std::lock_guard lock(merging_);
  return merged_tokens_ + lanes_.tokens();
}

at::Tensor HessianAccumulator::merge() {
  const std::lock_guard lock(merging_);
  const LaneSums::Sum added = lanes_.take();
  if (!added.sum.defined()) {
    if (!merged_.defined()) merged_ = tensor::zeros({columns_, columns_}, at::kFloat);
    return merged_;
  }
  const int64_t before = merged_tokens_;
  const auto total = static_cast<double>(before + added.tokens);
  finish_gram(added.sum, 2.0 / total, gram_form(added.sum));
  if (before > 0) added.sum.add_(merged_, static_cast<double>(before) / total);
  merged_ = added.sum;
  merged_tokens_ = before + added.tokens;
  return merged_;
}

}  // namespace gramian
