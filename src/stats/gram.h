// What a sum of xᵀx needs of one batch of token rows x [T, K] and of the fp32 sum [K, K], of which only the lower
// triangle counts until it is finished. CPU tensors go to kernels/gram, bf16 rows as bf16; tensors of other devices,
// and of CPUs that have only the scalar reference, to LibTorch, widened to fp32. The LibTorch form runs on any device,
// so that it is tested on CPU tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/parallel.h"

namespace at {
class Tensor;
}
namespace gramian::gram {
struct Workspace;
}

namespace gramian {

enum class GramForm { kernels, libtorch };
// The form for the device of `x`.
GramForm gram_form(const at::Tensor& x);

// Buffers of kernels/gram, one for each thread of the pool, made when first needed. One batch at a time.
class GramWorkspaces {
 public:
  GramWorkspaces();
  ~GramWorkspaces();
  gram::Workspace* get(int threads);

 private:
  std::unique_ptr<gram::Workspace[]> workspaces_;
  int count_ = 0;
};

// The first row of x that holds an infinity or a NaN. `pool`: null for the calling thread alone.
std::optional<int64_t> first_non_finite(const at::Tensor& x, ThreadPool* pool, GramForm form);

// sum += xᵀ x, on and below the diagonal. The bits do not depend on the pool.
void add_gram(const at::Tensor& sum, const at::Tensor& x, GramWorkspaces& workspaces, ThreadPool* pool,
              GramForm form);

// sum = factor · sum, mirrored to the upper triangle.
void finish_gram(const at::Tensor& sum, double factor, GramForm form);

}  // namespace gramian
