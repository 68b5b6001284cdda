// The rows of a convolution, against the places of the kernel one by one.
#include "stats/patch_rows.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "stats/support.h"

namespace gramian {
namespace {

at::Tensor place_by_place(const at::Tensor& x, const PatchRule& rule) {
  const int64_t channels = x.size(1) / rule.groups;
  const auto places = [&](int i) {
    return (x.size(2 + i) + 2 * rule.padding[i] - rule.dilation[i] * (rule.kernel[i] - 1) - 1) /
               rule.stride[i] +
           1;
  };
  const int64_t height = places(0), width = places(1), columns = channels * rule.kernel[0] * rule.kernel[1];
  const at::Tensor rows = tensor::zeros({x.size(0) * rule.groups * height * width, columns}, at::kFloat);
  float* out = rows.mutable_data_ptr<float>();
  const auto at = [&](int64_t image, int64_t channel, int64_t y, int64_t z) {
    if (y < 0 || y >= x.size(2) || z < 0 || z >= x.size(3)) return 0.0f;
    return x.const_data_ptr<float>()[((image * x.size(1) + channel) * x.size(2) + y) * x.size(3) + z];
  };
  for (int64_t image = 0; image < x.size(0); ++image)
    for (int64_t group = 0; group < rule.groups; ++group)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t z = 0; z < width; ++z)
          for (int64_t c = 0; c < channels; ++c)
            for (int64_t i = 0; i < rule.kernel[0]; ++i)
              for (int64_t j = 0; j < rule.kernel[1]; ++j)
                *out++ = at(image, group * channels + c,
                            y * rule.stride[0] - rule.padding[0] + i * rule.dilation[0],
                            z * rule.stride[1] - rule.padding[1] + j * rule.dilation[1]);
  return rows;
}

TEST(PatchRows, AreThePlacesOfTheKernel) {
  const at::Tensor x = testing_support::make_rows(2 * 6 * 9, 8, 3).reshape({2, 6, 9, 8});
  for (const PatchRule& rule :
       {PatchRule{}, PatchRule{.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}},
        PatchRule{.kernel = {3, 3}, .groups = 2}, PatchRule{.kernel = {9, 8}, .groups = 6},
        PatchRule{.kernel = {2, 5}, .stride = {3, 2}, .padding = {4, 3}, .dilation = {2, 1}, .groups = 3}})
    EXPECT_TRUE(patch_rows(x, rule).equal(place_by_place(x, rule)));
  const PatchRule line{.kernel = {4, 1}, .padding = {3, 0}, .groups = 6};
  const at::Tensor one = x.select(3, 0).contiguous();
  EXPECT_TRUE(patch_rows(one, line).equal(place_by_place(one.unsqueeze(3), line)));
  EXPECT_EQ(patch_rows(x.to(at::kBFloat16), {}).scalar_type(), at::kBFloat16);
}

TEST(PatchRows, RefusesWhatIsNoConvolution) {
  const at::Tensor x = tensor::zeros({1, 6, 4, 4}, at::kFloat);
  for (const PatchRule& rule : {PatchRule{.groups = 4}, PatchRule{.groups = 0}, PatchRule{.kernel = {5, 1}},
                                PatchRule{.kernel = {0, 1}}, PatchRule{.kernel = {3, 3}, .dilation = {2, 1}},
                                PatchRule{.stride = {0, 1}}, PatchRule{.padding = {0, -1}}})
    EXPECT_THROW(patch_rows(x, rule), Error);
  EXPECT_THROW(patch_rows(x.reshape({6, 16}), {}), Error);
  EXPECT_THROW(patch_rows(x.to(at::kLong), {}), Error);
}

}  // namespace
}  // namespace gramian
