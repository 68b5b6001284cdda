// A quantized layer whose weight is decoded when it is opened: for formats without a kernel of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include "formats/linear_format.h"
#include "models/linear.h"

namespace gramian {

class DequantizedLinear final : public LinearOp {
 public:
  // `eight_bit_rows`: rows of activations are rounded to int8 first, symmetric, with one scale each, as vLLM's and
  // compressed-tensors' W8A8 and W4A8 do: scale = max|x| / 127.5 of the row, codes -128 .. 127. `dtype`: of the model.
  DequantizedLinear(const DecodedLinear& decoded, bool eight_bit_rows, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& x) const override;

 private:
  DenseLinear product_;
  at::Tensor bias_;  // apart where rows are scaled behind the product
  bool eight_bit_rows_;
};

}  // namespace gramian
