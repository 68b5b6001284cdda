// Token rows for the tests of statistics, and their distance from what float64 says.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tensor/ops.h"

namespace gramian::testing_support {

// Reproducible rows with a different scale per column.
inline at::Tensor make_rows(int64_t count, int64_t columns, int seed) {
  const at::Tensor index = tensor::arange(count * columns, at::kDouble).add(seed * 7919.0);
  const at::Tensor noise = index.mul(12.9898).sin().mul(43758.5453).frac();
  return noise.reshape({count, columns})
      .mul(tensor::arange(columns, at::kDouble).add(1).sqrt())
      .to(at::kFloat);
}

inline at::Tensor exact_hessian(const std::vector<at::Tensor>& batches, int64_t columns) {
  at::Tensor sum = tensor::zeros({columns, columns}, at::kDouble);
  int64_t tokens = 0;
  for (const at::Tensor& batch : batches) {
    const at::Tensor x = batch.reshape({-1, columns}).to(at::kDouble);
    sum.add_(x.t().matmul(x));
    tokens += x.size(0);
  }
  return sum.mul_(2.0 / static_cast<double>(tokens));
}

// max |ΔH_ij| / √(H_ii H_jj): rounding of products and sums in fp32, whatever their order.
inline double distance(const at::Tensor& h, const at::Tensor& expected) {
  const at::Tensor e = expected.to(at::kDouble);
  const at::Tensor root = e.diagonal().sqrt().clamp_min(1e-300);
  return h.to(at::kDouble).sub(e).abs().div(root.unsqueeze(0)).div(root.unsqueeze(1)).max().item<double>();
}

}  // namespace gramian::testing_support
