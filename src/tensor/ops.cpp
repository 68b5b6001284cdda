#include "tensor/ops.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "tensor/one_query.h"

namespace gramian::tensor {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::i64:
      return at::kLong;
    case DType::i32:
      return at::kInt;
    case DType::i16:
      return at::kShort;
    case DType::i8:
      return at::kChar;
    case DType::u64:
      return at::kUInt64;
    case DType::u32:
      return at::kUInt32;
    case DType::u16:
      return at::kUInt16;
    case DType::u8:
      return at::kByte;
    case DType::boolean:
      return at::kBool;
    case DType::f8_e4m3:
      return at::kFloat8_e4m3fn;
    case DType::f8_e5m2:
      return at::kFloat8_e5m2;
    case DType::f8_e8m0:
      return at::kFloat8_e8m0fnu;
  }
  throw Error(ErrorKind::unsupported, "", str("no tensor type for ", dtype_name(dtype)));
}

DType dtype_of(at::ScalarType type) {
  for (int i = 0; i <= static_cast<int>(DType::f8_e8m0); ++i) {
    if (scalar_type(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  throw Error(ErrorKind::unsupported, "", str("no file type for ", c10::toString(type)));
}
DType dtype_of(const at::Tensor& tensor) { return dtype_of(tensor.scalar_type()); }

at::Tensor zeros(at::IntArrayRef shape, at::ScalarType type) { return at::zeros(shape, type); }
at::Tensor empty(at::IntArrayRef shape, at::ScalarType type) { return at::empty(shape, type); }
at::Tensor full(at::IntArrayRef shape, double value, at::ScalarType type) {
  return at::full(shape, value, type);
}
at::Tensor arange(int64_t end, at::ScalarType type) { return at::arange(end, type); }

at::Tensor wrap(const void* data, at::IntArrayRef shape, at::ScalarType type,
                std::shared_ptr<const void> owner) {
  return at::from_blob(
      const_cast<void*>(data), shape, [owner = std::move(owner)](void*) {}, at::TensorOptions(type));
}

at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim) { return at::cat(tensors, dim); }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  // In f32 the bits of products with very few rows depend on the number of threads, on some CPUs those of a single one too. In other
  // types a single row is a product of another kind, which has no such fault.
  constexpr int64_t kRows = 16;
  const int64_t least = x.scalar_type() == at::kFloat ? 1 : 2;
  if (x.dim() == 2 && x.size(0) >= least && x.size(0) < kRows)
    return at::linear(at::constant_pad_nd(x, {0, 0, 0, kRows - x.size(0)}), weight, bias)
        .slice(0, 0, x.size(0));
  return at::linear(x, weight, bias);
}

namespace {

// How LibTorch divides a function of `count` contiguous elements among its threads: a thread gets this many at least, or for
// gelu, from 2^14 elements on, an equal share.
constexpr int64_t kGrain = 32768, kGeluGrain = 16384;
// Elements in two of the widest vectors of the narrowest type, which is what a thread computes at one time.
constexpr int64_t kVectors = 64;

// How many of `count` elements LibTorch divides so that every thread's share is whole vectors.
int64_t even_part(int64_t count, bool gelu) {
  const int64_t most = at::get_num_threads();
  if (most == 1) return count;
  const int64_t share = count / most / kVectors * kVectors;
  if (gelu) return most * share > kGeluGrain ? most * share : std::min(count, kGeluGrain);
  const int64_t threads = count / kGrain;
  if (threads == 0) return count;
  return threads < most ? threads * kGrain : most * share;
}

// f(out, in) on parts of x: the odd elements, which are computed in another way, are the last ones of x whatever the threads.
at::Tensor elementwise(const at::Tensor& given, bool gelu,
                       const std::function<void(at::Tensor&, const at::Tensor&)>& f) {
  const at::Tensor x = given.contiguous();
  at::Tensor out = at::empty_like(x);
  if (even_part(x.numel(), gelu) == x.numel()) {
    f(out, x);
    return out;
  }
  const at::Tensor in_flat = x.view({-1}), out_flat = out.view({-1});
  for (int64_t begin = 0, end = 0; begin < x.numel(); begin = end) {
    end = begin + even_part(x.numel() - begin, gelu);
    at::Tensor target = out_flat.slice(0, begin, end);
    f(target, in_flat.slice(0, begin, end));
  }
  return out;
}

}  // namespace

at::Tensor silu(const at::Tensor& x) {
  return elementwise(x, false, [](at::Tensor& out, const at::Tensor& in) { at::silu_out(out, in); });
}
at::Tensor gelu(const at::Tensor& x, bool tanh_form) {
  const char* form = tanh_form ? "tanh" : "none";
  return elementwise(x, true, [&](at::Tensor& out, const at::Tensor& in) { at::gelu_out(out, in, form); });
}
at::Tensor sigmoid(const at::Tensor& x) {
  return elementwise(x, false, [](at::Tensor& out, const at::Tensor& in) { at::sigmoid_out(out, in); });
}
at::Tensor softplus(const at::Tensor& x) {
  return elementwise(x, false, [](at::Tensor& out, const at::Tensor& in) { at::softplus_out(out, in); });
}
at::Tensor tanh(const at::Tensor& x) {
  return elementwise(x, false, [](at::Tensor& out, const at::Tensor& in) { at::tanh_out(out, in); });
}

namespace {

// [L, S], with closed keys [B, 1, L, S]: whether a query reads a key; queries are of the last L of S positions.
at::Tensor visible_keys(const at::Tensor& q, const at::Tensor& k, const AttentionRule& rule) {
  const at::Tensor position = at::arange(k.size(2), at::kLong);
  const at::Tensor query = position.narrow(0, k.size(2) - q.size(2), q.size(2));
  const at::Tensor distance = query.unsqueeze(1).sub(position.unsqueeze(0));
  at::Tensor visible = distance.ge(0);
  if (rule.window > 0) visible = visible.logical_and(distance.lt(rule.window));
  if (!rule.closed.defined()) return visible;
  const int64_t gone = rule.closed.size(2) - k.size(2);
  return visible.logical_and(rule.closed.narrow(2, gone, k.size(2)).logical_not()).unsqueeze(1);
}

// Fused attention neither caps its scores nor knows sinks. One row and one head of k and v at a time, so that few scores exist
// at once.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionRule& rule) {
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor hidden = visible_keys(q, k, rule).logical_not();
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < k.size(1); ++h) {
      const at::Tensor query = q[b].narrow(0, h * group, group).to(at::kFloat);
      at::Tensor scores = query.matmul(k[b][h].to(at::kFloat).t()).mul_(rule.scale);
      if (rule.softcap > 0) scores = tensor::tanh(scores.div_(rule.softcap)).mul_(rule.softcap);
      scores.masked_fill_(hidden.dim() == 4 ? hidden[b] : hidden, -std::numeric_limits<double>::infinity());
      at::Tensor weights;
      if (rule.sinks.defined()) {
        const at::Tensor sink = rule.sinks.narrow(0, h * group, group).view({group, 1, 1});
        weights =
            at::cat({scores, sink.expand({group, q.size(2), 1})}, -1).softmax(-1).narrow(-1, 0, k.size(2));
      } else {
        weights = scores.softmax(-1);
      }
      out[b].narrow(0, h * group, group).copy_(weights.matmul(v[b][h].to(at::kFloat)));
    }
  }
  return out;
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& all_k, const at::Tensor& all_v,
                            const AttentionRule& rule) {
  const int64_t length = q.size(2);
  // The last keys that any query sees.
  const int64_t seen = rule.window > 0 ? std::min(all_k.size(2), length + rule.window - 1) : all_k.size(2);
  at::Tensor k = all_k.narrow(2, all_k.size(2) - seen, seen);
  at::Tensor v = all_v.narrow(2, all_v.size(2) - seen, seen);
  if (length == 1) {
    if (at::Tensor out = one_query_attention(q, k, v, rule, nullptr); out.defined()) return out;
  }
  k = k.to(q.scalar_type());
  v = v.to(q.scalar_type());
  if (rule.softcap > 0 || rule.sinks.defined()) return plain_attention(q, k, v, rule);
  const bool grouped = q.size(1) != k.size(1);
  if (length == 1) {
    // One query sees all keys that are not closed; the heads of a group are queries to the same keys.
    std::optional<at::Tensor> mask;
    if (rule.closed.defined()) mask = visible_keys(q, k, rule);
    const at::Tensor query = q.reshape({q.size(0), k.size(1), q.size(1) / k.size(1), q.size(3)});
    return at::scaled_dot_product_attention(query, k, v, mask, 0.0, false, rule.scale)
        .reshape({q.size(0), q.size(1), 1, v.size(3)});
  }
  if (v.size(3) < q.size(3)) {
    // Fused attention wants one width; what it falls back to makes all scores at once.
    const at::Tensor wide = at::constant_pad_nd(v, {0, q.size(3) - v.size(3)});
    return causal_attention(q, k, wide, rule).narrow(-1, 0, v.size(3));
  }
  if (!rule.closed.defined() && seen == length && (rule.window <= 0 || rule.window >= length)) {
    return at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, true, rule.scale, grouped);
  }
  return at::scaled_dot_product_attention(q, k, v, visible_keys(q, k, rule), 0.0, false, rule.scale, grouped);
}

std::optional<at::Tensor> cholesky(const at::Tensor& matrix) {
  auto [factor, info] = at::linalg_cholesky_ex(matrix);
  if (info.item<int>() != 0) return std::nullopt;
  // LAPACK lets NaN pass as success.
  if (!factor.diagonal().isfinite().all().item<bool>()) return std::nullopt;
  return factor;
}

at::Tensor solve_triangular(const at::Tensor& triangular, const at::Tensor& b, bool upper,
                            bool unit_diagonal) {
  return at::linalg_solve_triangular(triangular, b, upper, /*left=*/true, unit_diagonal);
}

at::Tensor cholesky_inverse(const at::Tensor& lower) { return at::cholesky_inverse(lower); }

at::Tensor im2col(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef dilation,
                  at::IntArrayRef padding, at::IntArrayRef stride) {
  return at::im2col(x, kernel, dilation, padding, stride);
}

struct InferenceScope::Guard {
  c10::InferenceMode mode;
};
InferenceScope::InferenceScope() : guard_(std::make_unique<Guard>()) {}
InferenceScope::~InferenceScope() = default;

void set_threads(int threads) { at::set_num_threads(threads); }
int threads() { return at::get_num_threads(); }

bool cpu_has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

std::string libtorch_version() {
  const std::string config = at::show_config(), key = "TORCH_VERSION=";
  const size_t found = config.find(key);
  if (found == std::string::npos) return "unknown";
  const size_t begin = found + key.size();
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

}  // namespace gramian::tensor
