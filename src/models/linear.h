// A linear layer as the forward sees it: something that multiplies. What stands behind it (a dense weight, QQQ codes) may
// be exchanged while a forward is paused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gramian {

class LinearOp {
 public:
  virtual ~LinearOp() = default;
  // x [tokens, in] of the model's dtype -> [tokens, out], same dtype. Thread-safe.
  virtual at::Tensor forward(const at::Tensor& x) const = 0;
  // What each of `ops`, of which this is the first, makes of one input. A kind of layer that can share work among them overrides it.
  virtual std::vector<at::Tensor> forward_together(const std::vector<const LinearOp*>& ops,
                                                   const at::Tensor& x) const;
};

class DenseLinear final : public LinearOp {
 public:
  // weight [out, in], bias [out] or undefined; both in the model's dtype.
  DenseLinear(at::Tensor weight, at::Tensor bias);
  at::Tensor forward(const at::Tensor& x) const override;
  const at::Tensor& weight() const noexcept { return weight_; }
  const at::Tensor& bias() const noexcept { return bias_; }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

// Linear layers in the order of a forward's pauses; those of one entry read the same input.
using ModuleTree = std::vector<std::vector<std::string>>;

// Where a weight [out, in] and its bias lie in a checkpoint when they are not all of NAME.weight and NAME.bias: rows
// first_row, first_row + row_step ... of one matrix of a stack, or all of a tensor that has another name.
struct StoredWeight {
  std::string tensor;  // empty: NAME.weight
  std::string bias;    // [matrices, rows]; empty: NAME.bias
  std::vector<int64_t>
      shape;  // [matrices, rows, in], or transposed [matrices, in, rows]; of a whole tensor without `matrices`
  bool transposed = false;
  int64_t matrix = 0;
  int64_t first_row = 0;
  int64_t row_step = 1;
};

struct Linear {
  std::string name;  // full module name, "model.layers.0.self_attn.q_proj"
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool has_bias = false;
  std::shared_ptr<const LinearOp> op;
  StoredWeight stored = {};
  // The tensors of the checkpoint that hold the weight and the bias.
  std::string tensor_name() const { return stored.tensor.empty() ? name + ".weight" : stored.tensor; }
  std::string bias_name() const { return stored.bias.empty() ? name + ".bias" : stored.bias; }
};

}  // namespace gramian
