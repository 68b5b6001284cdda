// The rows that a convolution multiplies its weight with.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace gramian {

// Height, then width. One dimension: the second entries stay as they are here.
struct PatchRule {
  std::array<int64_t, 2> kernel = {1, 1}, stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
  int64_t groups = 1;
};

// input [images, channels, height, width], or [images, channels, length], of any float type ->
// [images * groups * places, channels / groups * kernel height * kernel width], in the input's type: one row for each place that
// the kernel takes, with zeros where it stands over the padding. A convolution is these rows times its weight flattened behind the
// first dimension; all groups see one kind of row, and so share a Hessian, as in GPT-QModel. Throws invalid_argument for other
// shapes, for channels that the groups do not divide, and for a kernel that is larger than the padded input.
at::Tensor patch_rows(const at::Tensor& input, const PatchRule& rule);

}  // namespace gramian
