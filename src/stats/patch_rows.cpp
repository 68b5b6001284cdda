#include "stats/patch_rows.h"

#include <string>

#include "base/error.h"
#include "base/format.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 20;  // so that no product of two overflows

void refuse(const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::invalid_argument, "input of a convolution", why, remedy);
}

}  // namespace

at::Tensor patch_rows(const at::Tensor& input, const PatchRule& rule) {
  if ((input.dim() != 3 && input.dim() != 4) || !input.is_floating_point())
    refuse("is no float tensor of 3 or 4 dimensions",
           "give [images, channels, length] or [images, channels, height, width]");
  if (rule.groups < 1 || input.size(1) % rule.groups != 0)
    refuse(str(input.size(1), " channels are not divided by ", rule.groups, " groups"),
           "give the convolution's own groups");
  const int64_t channels = input.size(1) / rule.groups;
  const at::Tensor images = input.reshape(
      {input.size(0) * rule.groups, channels, input.size(2), input.dim() == 3 ? 1 : input.size(3)});
  for (int i = 0; i < 2; ++i) {
    for (const int64_t size : {rule.kernel[i], rule.stride[i], rule.padding[i] + 1, rule.dilation[i]})
      if (size < 1 || size > kSizeMax)
        refuse("kernel, stride and dilation must be positive, padding not negative, and none above 2^20",
               "give the convolution's own");
    const int64_t padded = images.size(2 + i) + 2 * rule.padding[i],
                  reach = rule.dilation[i] * (rule.kernel[i] - 1) + 1;
    if (reach > padded)
      refuse(str("a kernel that reaches over ", reach, " places does not fit into ", padded),
             "give larger inputs, or the convolution's own padding");
  }
  const at::Tensor columns = tensor::im2col(images, rule.kernel, rule.dilation, rule.padding, rule.stride);
  return columns.transpose(1, 2).reshape({-1, columns.size(1)});
}

}  // namespace gramian
