#include "runtime/dequantized_linear.h"

#include <limits>

namespace gramian {
namespace {

at::Tensor in_type(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

}  // namespace

DequantizedLinear::DequantizedLinear(const DecodedLinear& decoded, bool eight_bit_rows, at::ScalarType dtype)
    : product_(decoded.weight.to(dtype), eight_bit_rows ? at::Tensor() : in_type(decoded.bias, dtype)),
      bias_(eight_bit_rows ? in_type(decoded.bias, at::kFloat) : at::Tensor()),
      eight_bit_rows_(eight_bit_rows) {}

at::Tensor DequantizedLinear::forward(const at::Tensor& x) const {
  if (!eight_bit_rows_) return product_.forward(x);
  const at::Tensor rows = x.to(at::kFloat);
  const at::Tensor scale =
      rows.abs().amax(-1, true).div_(127.5).clamp_min_(std::numeric_limits<float>::min());
  // Integers up to 128 are exact in every type.
  const at::Tensor codes = rows.div(scale).round_().clamp_(-128, 127);
  at::Tensor result = product_.forward(codes.to(x.scalar_type())).to(at::kFloat).mul_(scale);
  if (bias_.defined()) result.add_(bias_);
  return result.to(x.scalar_type());
}

}  // namespace gramian
