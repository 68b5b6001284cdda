#include "tensor/rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "tensor/ops.h"

namespace gramian::tensor {
namespace {

constexpr int64_t kHadamardMost = 64;

// Sylvester's, over √n; n is a power of two.
at::Tensor hadamard(int64_t n) {
  at::Tensor matrix = empty({n, n}, at::kDouble);
  auto* to = matrix.mutable_data_ptr<double>();
  const double entry = 1 / std::sqrt(static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j)
      to[i * n + j] = __builtin_parityll(static_cast<uint64_t>(i & j)) ? -entry : entry;
  }
  return matrix;
}

at::Tensor cosine(int64_t n) {
  at::Tensor matrix = empty({n, n}, at::kDouble);
  auto* to = matrix.mutable_data_ptr<double>();
  const auto size = static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      to[i * n + j] =
          std::sqrt((j == 0 ? 1 : 2) / size) *
          std::cos(std::numbers::pi / size * (static_cast<double>(i) + 0.5) * static_cast<double>(j));
    }
  }
  return matrix;
}

}  // namespace

Rotation::Rotation(int64_t size, uint64_t seed) : size_(size), signs_(empty({size}, at::kDouble)) {
  std::mt19937_64 bits(seed);  // its numbers are fixed by the standard
  auto* to = signs_.mutable_data_ptr<double>();
  for (int64_t i = 0; i < size; ++i) to[i] = (bits() >> 63) != 0 ? -1 : 1;
  int64_t two = size & -size;
  const int64_t odd = size / two;
  while (two > 1) {
    const int64_t n = std::min(two, kHadamardMost);
    factors_.push_back(hadamard(n));
    two /= n;
  }
  if (odd > 1) factors_.push_back(cosine(odd));
}

at::Tensor Rotation::columns(const at::Tensor& x) const {
  at::Tensor value = x.to(at::kDouble).mul(signs_);
  int64_t inner = size_;
  for (const at::Tensor& factor : factors_) {
    inner /= factor.size(0);
    value = factor.t().matmul(value.reshape({-1, factor.size(0), inner}));
  }
  return value.reshape(x.sizes());
}

at::Tensor Rotation::rows(const at::Tensor& w) const {
  const at::Tensor flat = w.reshape({size_, -1});
  return columns(flat.t()).t().contiguous().view(w.sizes());
}

}  // namespace gramian::tensor
