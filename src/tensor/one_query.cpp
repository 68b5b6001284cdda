#include "tensor/one_query.h"

#include <algorithm>

#include "kernels/attention/attention.h"

namespace gramian::tensor {
namespace {

bool is_plain(const at::Tensor& x, at::ScalarType type) {
  return x.is_cpu() && x.scalar_type() == type && x.stride(3) == 1;
}

}  // namespace

at::Tensor one_query_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionRule& rule, ThreadPool* pool) {
  const at::ScalarType type = q.scalar_type(), kept = k.scalar_type();
  for (const at::ScalarType each : {type, kept})
    if (each != at::kFloat && each != at::kHalf && each != at::kBFloat16) return {};
  if (kept != type && type != at::kFloat) return {};
  if (!is_plain(q, type) || !is_plain(k, kept) || !is_plain(v, kept)) return {};
  if (q.size(2) != 1 || k.size(2) == 0 || rule.softcap > 0 || rule.sinks.defined() || rule.closed.defined())
    return {};
  const int64_t seen = rule.window > 0 ? std::min(k.size(2), rule.window) : k.size(2),
                gone = k.size(2) - seen;
  const auto from = [&](const at::Tensor& x) {
    return static_cast<const char*>(x.const_data_ptr()) +
           gone * x.stride(2) * static_cast<int64_t>(x.element_size());
  };
  at::Tensor out = empty({q.size(0), q.size(1), 1, v.size(3)}, type);
  attend_one_query(cpu_level(),
                   {.type = dtype_of(q),
                    .kept = dtype_of(k),
                    .q = q.const_data_ptr(),
                    .k = from(k),
                    .v = from(v),
                    .rows = q.size(0),
                    .heads = q.size(1),
                    .kv_heads = k.size(1),
                    .positions = seen,
                    .size = q.size(3),
                    .value_size = v.size(3),
                    .q_row_stride = q.stride(0),
                    .q_head_stride = q.stride(1),
                    .k_row_stride = k.stride(0),
                    .k_head_stride = k.stride(1),
                    .k_position_stride = k.stride(2),
                    .v_row_stride = v.stride(0),
                    .v_head_stride = v.stride(1),
                    .v_position_stride = v.stride(2),
                    .scale = static_cast<float>(rule.scale)},
                   out.mutable_data_ptr(), pool);
  return out;
}

}  // namespace gramian::tensor
