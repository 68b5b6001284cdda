// Parts of a packed module that are not what they must be.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

namespace gramian {

// Throws corrupt_data: `tensor` `what`.
[[noreturn]] void refuse_part(const std::string& tensor, const std::string& what);
// The tensor. Throws corrupt_data, naming it, where it is undefined, or of another type or shape.
at::Tensor expect_part(const at::Tensor& tensor, const std::string& name,
                       std::initializer_list<at::ScalarType> types, at::IntArrayRef shape);
// Throws corrupt_data where a value is NaN or infinite.
void expect_finite(const at::Tensor& tensor, const std::string& name);

}  // namespace gramian
