// A linear layer with a low-rank adapter beside it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "formats/lora_adapter.h"
#include "models/linear.h"

namespace gramian {

// y + scale · (x Aᵀ) Bᵀ: y is what the layer itself gives in x's type, bias and all; the rest is computed in f32 and rounded once.
class AdaptedLinear final : public LinearOp {
 public:
  AdaptedLinear(std::shared_ptr<const LinearOp> base, const LowRank& adapter);
  at::Tensor forward(const at::Tensor& x) const override;
  // The layers under the adapters still share their work.
  std::vector<at::Tensor> forward_together(const std::vector<const LinearOp*>& ops,
                                           const at::Tensor& x) const override;

 private:
  at::Tensor adapted(const at::Tensor& y, const at::Tensor& x) const;
  std::shared_ptr<const LinearOp> base_;
  at::Tensor a_;  // f32 [rank, in], times scale
  at::Tensor b_;  // f32 [out, rank]
};

}  // namespace gramian
