// The weights of a checkpoint as a model needs them: in its dtype, with shapes checked, quantized modules opened by
// whoever knows their format.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/linear.h"

namespace gramian {

// Opens the quantized module `linear.name`; returns nullptr when the checkpoint holds it as a plain weight.
using QuantizedLinearFactory =
    std::function<std::shared_ptr<const LinearOp>(const Checkpoint& checkpoint, const Linear& linear)>;

// Puts something around a module's `op`, or returns it as it is.
using LinearDecorator = std::function<std::shared_ptr<const LinearOp>(const Linear& linear)>;

class Weights {
 public:
  // `quantized` and `decorate` may be empty.
  Weights(std::shared_ptr<const Checkpoint> checkpoint, at::ScalarType dtype,
          QuantizedLinearFactory quantized, bool keep_experts = false, LinearDecorator decorate = nullptr);

  // What a check of a checkpoint's headers finds; no tensor is read.
  struct Survey {
    std::vector<Linear> linears;        // without `op`
    std::vector<std::string> problems;  // one line each
    // Modules whose tensors somebody else checks (quantized ones); may be empty.
    std::function<bool(const std::string& module)> is_packed;
    // Throws corrupt_data with all problems, if any; `folder` is the checkpoint's.
    void refuse(const std::string& folder) const;
  };
  // A copy that only checks names and shapes and writes what it meets to `survey`, which must outlive it.
  Weights surveying(Survey& survey) const;

  // The tensor as it is stored, without a copy. Throws corrupt_data for another shape, unsupported for a type other than
  // F64, F32, F16 or BF16.
  at::Tensor stored(const std::string& name, const std::vector<int64_t>& shape) const;
  // The same in the model's dtype; zero-copy when it is stored so.
  at::Tensor tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  // A stored I64 tensor; throws as above for another shape or type.
  at::Tensor integers(const std::string& name, const std::vector<int64_t>& shape) const;
  // Module `name` with weight [out, in] and, with `bias`, bias [out].
  Linear linear(const std::string& name, int64_t in, int64_t out, bool bias,
                const StoredWeight& where = {}) const;
  at::ScalarType dtype() const noexcept { return dtype_; }
  const Checkpoint& checkpoint() const noexcept { return *checkpoint_; }
  const std::shared_ptr<const Checkpoint>& shared_checkpoint() const noexcept { return checkpoint_; }
  bool is_survey() const noexcept { return survey_ != nullptr; }
  // Whether an expert that was opened stays in memory: for models that run again and again.
  bool keeps_experts() const noexcept { return keep_experts_; }

 private:
  // The tensor's entry; null, with the problem written down, where a survey finds one. Reads no values.
  const StoredTensor* checked(const std::string& name, const std::vector<int64_t>& shape,
                              bool integers = false) const;
  std::shared_ptr<const Checkpoint> checkpoint_;
  at::ScalarType dtype_;
  QuantizedLinearFactory quantized_;
  bool keep_experts_;
  LinearDecorator decorate_;
  Survey* survey_ = nullptr;
};

// The module's weight [out, in] and bias [out] in the type in which the checkpoint stores them; zero-copy where their bytes
// allow. The bias is undefined for a module without.
at::Tensor source_weight(const Checkpoint& checkpoint, const Linear& linear);
at::Tensor source_bias(const Checkpoint& checkpoint, const Linear& linear);

}  // namespace gramian
