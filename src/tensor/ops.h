// The one door to LibTorch's free functions (factories, linear algebra, attention). Everything else uses tensor methods
// from <ATen/core/Tensor.h>, which compile three times faster than a function header.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace gramian::tensor {

// Same size, same meaning. Throws unsupported for types that LibTorch lacks.
at::ScalarType scalar_type(DType dtype);
DType dtype_of(at::ScalarType type);
DType dtype_of(const at::Tensor& tensor);

at::Tensor zeros(at::IntArrayRef shape, at::ScalarType type);
at::Tensor empty(at::IntArrayRef shape, at::ScalarType type);
at::Tensor full(at::IntArrayRef shape, double value, at::ScalarType type);
at::Tensor arange(int64_t end, at::ScalarType type);
// A tensor over foreign memory that `owner` keeps alive. Read-only by convention when the memory is.
at::Tensor wrap(const void* data, at::IntArrayRef shape, at::ScalarType type,
                std::shared_ptr<const void> owner);
at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim);

// x [.., in] · weight [out, in]ᵀ + bias [out]. The bits do not depend on the number of threads.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
// Functions of every element. LibTorch computes the last few elements of a thread's part in another way than the others,
// with other last bits; these give the same bits for any number of threads.
at::Tensor silu(const at::Tensor& x);
at::Tensor gelu(const at::Tensor& x, bool tanh_form);
at::Tensor sigmoid(const at::Tensor& x);
at::Tensor softplus(const at::Tensor& x);
at::Tensor tanh(const at::Tensor& x);
struct AttentionRule {
  double scale = 1.0;     // of q·k
  int64_t window = 0;     // position j is visible to i when j <= i and, with window > 0, j > i - window
  double softcap = 0;     // with softcap > 0 scores become softcap · tanh(score / softcap)
  at::Tensor sinks = {};  // f32 [heads]: a further score in each softmax, which has no value; undefined: none
  // bool [B, L, S]: visible keys that a query leaves out, though never all of them; undefined: none
  at::Tensor closed = {};
};
// q [B, heads, L, d], k [B, kv_heads, S, d], v [B, kv_heads, S, e <= d], heads % kv_heads == 0 -> [B, heads, L, e]. Keys and
// values are of S positions, queries of the last L <= S of them.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionRule& rule);

// Lower Cholesky factor, or nothing when `matrix` [n, n] is not positive definite.
std::optional<at::Tensor> cholesky(const at::Tensor& matrix);
// Solves triangular · X = b, [.., n, n] and [.., n, k]; the other triangle and, with `unit_diagonal`, the diagonal are not
// read.
at::Tensor solve_triangular(const at::Tensor& triangular, const at::Tensor& b, bool upper,
                            bool unit_diagonal = false);
// Inverse of A from its lower Cholesky factor.
at::Tensor cholesky_inverse(const at::Tensor& lower);
// x [images, channels, height, width] -> [images, channels * kernel height * kernel width, places].
at::Tensor im2col(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef dilation,
                  at::IntArrayRef padding, at::IntArrayRef stride);

// Turns gradient recording and version counting off for the lifetime of the object, on this thread.
class InferenceScope {
 public:
  InferenceScope();
  ~InferenceScope();

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

// Threads that LibTorch uses for one operation started from the calling thread.
void set_threads(int threads);
int threads();
// Whether the CPU multiplies bf16 in hardware.
bool cpu_has_bf16();
// The version of the LibTorch loaded now, like "2.13.0"; "unknown" where it does not say.
std::string libtorch_version();

}  // namespace gramian::tensor
