// A QQQ layer as the forward runs it: int8 activations times int8 weights (kernels/w4a8), bit for bit the
// portable path of the format's other readers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "base/parallel.h"
#include "formats/qqq.h"
#include "kernels/cpu_level.h"
#include "models/linear.h"

namespace gramian {

class QqqLinear final : public LinearOp {
 public:
  // Keeps the decoded tensors: N·K bytes. Throws unsupported (with `name`) when K exceeds what int32 sums
  // hold (131071). `level`: the instructions to use; the result is the same at every level.
  QqqLinear(qqq::Decoded decoded, std::shared_ptr<ThreadPool> pool, std::string name = "",
            CpuLevel level = cpu_level());

  // x [.., K] of f32, f16 or bf16, any strides -> [.., N] of the same type. A zero row gives the bias; a row
  // that holds an infinity or a NaN gives NaN. Throws invalid_argument for another type or width.
  // Thread-safe; not from inside a task of the pool.
  at::Tensor forward(const at::Tensor& x) const override;

  const qqq::Decoded& decoded() const noexcept { return decoded_; }

 private:
  // The bias rounded to the type of x, as f32, or null.
  const float* bias_for(at::ScalarType type) const;

  qqq::Decoded decoded_;
  at::Tensor bias_f32_, bias_f16_, bias_bf16_;
  std::shared_ptr<ThreadPool> pool_;
  std::string name_;
  CpuLevel level_;
};

}  // namespace gramian
