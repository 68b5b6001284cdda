#include "formats/part_check.h"

#include "base/error.h"

namespace gramian {

void refuse_part(const std::string& tensor, const std::string& what) {
  throw Error(ErrorKind::corrupt_data, tensor, what, "restore the checkpoint from its source");
}

at::Tensor expect_part(const at::Tensor& tensor, const std::string& name,
                       std::initializer_list<at::ScalarType> types, at::IntArrayRef shape) {
  if (!tensor.defined()) refuse_part(name, "is missing");
  bool known = false;
  for (const at::ScalarType type : types) known |= tensor.scalar_type() == type;
  if (!known) refuse_part(name, gramian::str("is of type ", c10::toString(tensor.scalar_type())));
  if (tensor.sizes() != shape)
    refuse_part(name, gramian::str("has shape ", tensor.sizes(), ", expected ", shape));
  return tensor;
}

void expect_finite(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.isfinite().all().item<bool>()) refuse_part(name, "holds values that are NaN or infinite");
}

}  // namespace gramian
