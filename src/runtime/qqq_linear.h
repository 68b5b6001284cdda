// A QQQ layer as the forward runs it: int8 activations times weights that stay in 4 bits (kernels/w4a8), bit for bit the portable
// path of the format's other readers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/page_arena.h"
#include "base/parallel.h"
#include "formats/qqq.h"
#include "kernels/cpu_level.h"
#include "kernels/w4a8/product.h"
#include "models/linear.h"

namespace gramian {

// What the layers of a model share: the threads that multiply, the instructions they use (the result is the same at every
// level) and the memory of the weights.
struct QqqRuntime {
  std::shared_ptr<ThreadPool> pool;
  CpuLevel level = cpu_level();
  std::shared_ptr<PageArena> arena = std::make_shared<PageArena>();
};

class QqqLinear final : public LinearOp {
 public:
  // Copies the codes into the kernels' order: N·K/2 bytes. Throws unsupported (with `name`) when K exceeds what int32 sums hold
  // (131071), or when a ratio of groups, which the format has in f16, gives other weights there.
  QqqLinear(const qqq::Codes& codes, QqqRuntime runtime, std::string name = "");

  // x [.., K] of f32, f16 or bf16, any strides -> [.., N] of the same type. A zero row gives the bias; a row
  // that holds an infinity or a NaN gives NaN. Throws invalid_argument for another type or width.
  // Thread-safe; not from inside a task of the pool.
  at::Tensor forward(const at::Tensor& x) const override;
  // One quantization of x and one product where all are QQQ layers of one pool.
  std::vector<at::Tensor> forward_together(const std::vector<const LinearOp*>& ops,
                                           const at::Tensor& x) const override;

  // Memory of the weights and their scales.
  int64_t bytes() const noexcept;

 private:
  friend class QqqProduct;
  // The bias rounded to the type of x, as f32, or null.
  const float* bias_for(at::ScalarType type) const;

  w4a8::Weights weights_;
  std::shared_ptr<std::byte[]> codes_, ratios_;
  at::Tensor s_channel_;
  at::Tensor bias_f32_, bias_f16_, bias_bf16_;
  QqqRuntime runtime_;
  std::string name_;
};

}  // namespace gramian
