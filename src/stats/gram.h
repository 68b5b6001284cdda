// What statistics need of one batch of token rows x [T, K]: sums of xᵀx, of its 16 x 16 blocks on the diagonal and of x².
// CPU tensors go to kernels/gram; tensors of other devices, and of CPUs that have only the scalar reference, to LibTorch,
// widened to fp32. The LibTorch form runs on any device, so that it is tested on CPU tensors. The bits do not depend on the
// pool (null: the calling thread alone).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/parallel.h"
#include "stats/accumulation.h"
#include "stats/token_batch.h"

namespace gramian::gram {
struct Workspace;
}

namespace gramian {

enum class GramForm { kernels, libtorch };
// The form for the device of `x`.
GramForm gram_form(const at::Tensor& x);
// Whether that form multiplies bf16 as bf16, with fp32 sums.
bool multiplies_bf16(const at::Tensor& x);

// What `settings` come to for the type and the device of these rows (stats/accumulation.h).
Accumulation resolve(const AccumulationSettings& settings, const TokenBatch& batch, Log* log);
// For activations of this type on the CPU, but for the size of a chunk in rows.
Accumulation resolve_on_cpu(const AccumulationSettings& settings, at::ScalarType activations);

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

// The first row of the batch that counts and holds an infinity or a NaN.
std::optional<int64_t> first_non_finite(const TokenBatch& batch, ThreadPool* pool, GramForm form);

// sum f32 [K, K] += xᵀ x, on and below the diagonal; the rest of it counts only when it is finished.
void add_gram(const at::Tensor& sum, const TokenBatch& batch, const Accumulation& how,
              GramWorkspaces& workspaces, ThreadPool* pool, GramForm form);
// sum = factor · sum, mirrored to the upper triangle.
void finish_gram(const at::Tensor& sum, double factor, GramForm form);

// sum f32 [ceil(K / 16), 16, 16] += the blocks of xᵀ x on the diagonal; columns from K on count as zeros.
void add_diagonal_blocks(const at::Tensor& sum, const TokenBatch& batch, const Accumulation& how,
                         GramWorkspaces& workspaces, ThreadPool* pool, GramForm form);

// sum f64 [K] += Σ x². The squares are exact, so the bits depend on the order of the tokens alone (LibTorch: to rounding).
void add_column_squares(const at::Tensor& sum, const TokenBatch& batch, ThreadPool* pool, GramForm form);

}  // namespace gramian
