// Orthogonal matrices that spread every entry of a vector over all of them (QuaRot, Ashkboos et al. 2024).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gramian::tensor {

// R = diag(signs) · (F1 ⊗ F2 ⊗ ..), [size, size] with R Rᵀ = 1: random signs, Hadamard matrices for the powers of two in `size` and a
// cosine transform (DCT-II) for its odd part. Never held as a whole: a vector costs size · Σ factor sizes, not size².
class Rotation {
 public:
  // The same `seed` gives the same matrix everywhere.
  Rotation(int64_t size, uint64_t seed);
  int64_t size() const noexcept { return size_; }
  // x [.., size] -> x R, in f64.
  at::Tensor columns(const at::Tensor& x) const;
  // w [size, ..] -> Rᵀ w, in f64.
  at::Tensor rows(const at::Tensor& w) const;

 private:
  int64_t size_;
  at::Tensor signs_;                 // f64 [size]
  std::vector<at::Tensor> factors_;  // f64 [n, n] each
};

}  // namespace gramian::tensor
