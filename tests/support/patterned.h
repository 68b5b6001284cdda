// Tensors of every type for tests of files, and the bytes that a file holds of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tensor/ops.h"

namespace gramian::testing_support {

// A tensor whose bytes are 0, 1, 0, 1, ... so that they are a valid value of every type.
inline at::Tensor patterned(DType dtype, const std::vector<int64_t>& shape) {
  at::Tensor tensor = tensor::empty(shape, tensor::scalar_type(dtype));
  auto* bytes = static_cast<unsigned char*>(tensor.data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = i % 2;
  return tensor;
}

inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  if (dense.numel() == 0) return {};
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

}  // namespace gramian::testing_support
