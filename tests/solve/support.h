// Reproducible weights and Hessians for the solver tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tensor/ops.h"

namespace gramian::solve_test {

// Roughly normal, mean 0, deviation 1 (a sum of four uniform numbers).
inline at::Tensor noise(int64_t rows, int64_t columns, int seed) {
  at::Tensor sum = tensor::zeros({rows, columns}, at::kDouble);
  for (int part = 0; part < 4; ++part) {
    const at::Tensor index =
        tensor::arange(rows * columns, at::kDouble).add(seed * 104729.0 + part * 15485863.0);
    sum.add_(index.mul(12.9898).sin().mul(43758.5453).frac().abs().reshape({rows, columns}).sub(0.5));
  }
  return sum.mul_(1.7320508).to(at::kFloat);
}

// (2/n) XᵀX of correlated rows, whose columns differ in size by up to a factor of ten.
inline at::Tensor hessian(int64_t columns, int64_t tokens, int seed) {
  const at::Tensor mixed = noise(tokens, columns, seed).add(noise(tokens, 1, seed + 1));
  const at::Tensor x = mixed.mul(tensor::arange(columns, at::kFloat).mul(0.37).sin().abs().mul(0.9).add(0.1));
  return x.t().matmul(x).mul(2.0 / static_cast<double>(tokens));
}

// tr(E H Eᵀ) of the error that the codes leave.
inline double proxy(const at::Tensor& weight, const at::Tensor& codes, const at::Tensor& scale,
                    int64_t group_size, const at::Tensor& h) {
  const at::Tensor dequantized =
      codes.to(at::kDouble).mul(scale.to(at::kDouble).repeat_interleave(group_size, 1));
  const at::Tensor error = dequantized.sub(weight.to(at::kDouble));
  return error.matmul(h.to(at::kDouble)).mul(error).sum().item<double>();
}

}  // namespace gramian::solve_test
