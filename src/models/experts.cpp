#include "models/experts.h"

#include "tensor/ops.h"

namespace gramian {

ExpertBank::ExpertBank(int64_t count, bool resident, Open open)
    : resident_(resident), open_(std::move(open)), kept_(static_cast<size_t>(count)) {}

std::shared_ptr<Expert> ExpertBank::open(int64_t expert) {
  std::shared_ptr<Expert>& kept = kept_[static_cast<size_t>(expert)];
  if (kept) return kept;
  std::shared_ptr<Expert> opened = open_(expert);
  if (resident_) kept = opened;
  return opened;
}

ExpertRows::ExpertRows(const Routing& routing, int64_t experts) {
  const int64_t top_k = routing.experts.size(1);
  const at::Tensor flat = routing.experts.reshape({-1});
  const auto [sorted, order] = flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  ends_.assign(static_cast<size_t>(experts) + 1, 0);
  const at::Tensor chosen = flat.contiguous();
  const auto* ids = chosen.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < chosen.numel(); ++i) {
    if (ids[i] < 0 || ids[i] >= experts) {
      throw Error(ErrorKind::numerical, "router", str("expert ", ids[i], " of ", experts));
    }
    ++ends_[static_cast<size_t>(ids[i]) + 1];
  }
  for (size_t e = 1; e < ends_.size(); ++e) ends_[e] += ends_[e - 1];
  tokens_ = order.floor_divide(top_k);
  if (routing.weights.defined()) weights_ = routing.weights.reshape({-1, 1}).index_select(0, order);
  input_scale_ = routing.input_scale;
}

at::Tensor ExpertRows::gather(const at::Tensor& x, int64_t expert) const {
  const at::Tensor mine = tokens_of(expert), rows = x.index_select(0, mine);
  return input_scale_.defined() ? rows.mul(input_scale_.index_select(0, mine).narrow(1, expert, 1)) : rows;
}

at::Tensor ExpertRows::all(const at::Tensor& x, int64_t expert) const {
  return input_scale_.defined() ? x.mul(input_scale_.narrow(1, expert, 1)) : x;
}

at::Tensor ExpertRows::pick(const at::Tensor& out, int64_t expert) const {
  return out.index_select(0, tokens_of(expert));
}

void ExpertRows::add(const at::Tensor& sum, const at::Tensor& out, int64_t expert) const {
  const at::Tensor weighted =
      weights_.defined() ? out.mul(weights_.narrow(0, begin(expert), count(expert))) : out;
  sum.index_add_(0, tokens_of(expert), weighted.to(sum.scalar_type()));
}

at::Tensor run_experts(const at::Tensor& x, const Routing& routing, ExpertBank& bank,
                       int64_t& multiplications) {
  at::Tensor sum = tensor::zeros(x.sizes(), x.scalar_type());
  const ExpertRows rows(routing, bank.count());
  for (int64_t expert = 0; expert < bank.count(); ++expert) {
    if (rows.count(expert) == 0) continue;
    const std::shared_ptr<Expert> mlp = bank.open(expert);
    Execution execution(mlp->forward(rows.gather(x, expert)));
    while (Pause* pause = execution.advance()) multiplications += multiply(*pause);
    rows.add(sum, execution.result(), expert);
  }
  return sum;
}

}  // namespace gramian
