// Equality of tensors bit for bit, where any NaN equals any NaN; says where the first difference is.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace gramian::golden {

inline testing::AssertionResult same_bits(const at::Tensor& found, const at::Tensor& expected) {
  if (!found.defined()) return testing::AssertionFailure() << "no tensor";
  if (found.scalar_type() != expected.scalar_type() || found.sizes() != expected.sizes()) {
    return testing::AssertionFailure()
           << "expected " << c10::toString(expected.scalar_type()) << expected.sizes() << ", found "
           << c10::toString(found.scalar_type()) << found.sizes();
  }
  at::Tensor same = found.eq(expected);
  if (found.is_floating_point()) {
    same = same.logical_and(found.signbit().eq(expected.signbit()))
               .logical_or(found.isnan().logical_and(expected.isnan()));
  }
  if (same.all().item<bool>()) return testing::AssertionSuccess();
  const int64_t first = same.flatten().to(at::kByte).argmin().item<int64_t>();
  return testing::AssertionFailure() << same.logical_not().sum().item<int64_t>() << " of " << same.numel()
                                     << " elements differ, the first at " << first << ": expected "
                                     << expected.flatten()[first].item<double>() << ", found "
                                     << found.flatten()[first].item<double>();
}

}  // namespace gramian::golden
