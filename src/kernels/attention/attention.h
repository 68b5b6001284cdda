// Attention of the one token that is decoded: a query of every head against all kept positions, in f32, the same bits at
// every level and number of threads.
//
//   out[h] = A(sum_s p[s] · v[s] / sum_s p[s]),   p[s] = exp(scale · q[h]·k[s] - max_s(scale · q[h]·k[s]))
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/parallel.h"
#include "kernels/cpu_level.h"

namespace gramian {

// Strides in elements; the entries of a head lie together. heads % kv_heads == 0: neighbouring heads share keys and values.
struct OneQuery {
  DType type = DType::f32;  // of q and out: f32, f16 or bf16
  DType kept = DType::f32;  // of k and v: `type`, or f16 or bf16 where that is f32
  const void* q = nullptr;  // [rows, heads, size]
  const void* k = nullptr;  // [rows, kv_heads, positions, size]
  const void* v = nullptr;  // [rows, kv_heads, positions, value_size]
  int64_t rows = 0, heads = 0, kv_heads = 0, positions = 0;
  int64_t size = 0, value_size = 0;
  int64_t q_row_stride = 0, q_head_stride = 0;
  int64_t k_row_stride = 0, k_head_stride = 0, k_position_stride = 0;
  int64_t v_row_stride = 0, v_head_stride = 0, v_position_stride = 0;
  float scale = 1;
};

// -> out [rows, heads, value_size], contiguous. `pool` (null: the calling thread alone) is used where the work is worth it. Throws
// std::bad_alloc.
void attend_one_query(CpuLevel level, const OneQuery& query, void* out, ThreadPool* pool);

}  // namespace gramian
