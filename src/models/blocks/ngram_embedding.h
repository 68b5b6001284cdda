// Words of context looked up in a table by a hash, for every residual stream (Qwen 4's per-layer embedding; n-gram hashing as
// in Cheng et al., Engram, 2026). With t_s the id s tokens back, or eos where an eos or the row's beginning lies in between:
//   id of head h of order n = (t_0 · m_0 xor ... xor t_{n-1} · m_{n-1}) mod size_h + offset_h;   e = the heads' rows, end to end
//   gate_i = norm(key(e))_i · norm(stream)_i / sqrt(hidden), then sign · sqrt(|.|);   v_i = sigmoid(gate_i) · value(e)
// and v + silu(convolution of norm(v)) is added to the streams, the convolution taking every `order`-th token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/batch.h"
#include "models/blocks/residual_streams.h"

namespace gramian {

struct NgramSpec {
  StreamSpec streams;
  int64_t order = 0;            // tokens of the longest n-gram, >= 2
  int64_t heads_per_order = 0;  // of each of the orders 2 ... `order`
  int64_t dim = 0;              // of all heads together
  int64_t kernel = 0;           // of the convolution
  int64_t shards = 0;           // tensors that hold the table's rows
  int64_t eos = 0;
  int64_t heads() const { return (order - 1) * heads_per_order; }
};

// What it keeps of each run's earlier tokens; undefined before the first.
struct NgramState {
  at::Tensor ids;   // i64 [rows, order - 1]
  at::Tensor tail;  // [rows, (kernel - 1) · order, count · hidden]
  int64_t bytes() const;
};

// Stays as it is in a quantized model.
class NgramEmbedding {
 public:
  NgramEmbedding(const Weights& weights, const std::string& prefix, const NgramSpec& spec);
  // What is added to `streams` [tokens, count · hidden]; reads the batch's ids. `states`: one per run, or empty.
  at::Tensor added(const at::Tensor& streams, const BatchContext& batch,
                   const std::vector<NgramState*>& states) const;

 private:
  void check_table(const Weights& weights, const std::string& prefix) const;
  // ids i64 [rows, L] -> rows of the table i64 [rows, L, heads].
  at::Tensor hashed(const at::Tensor& ids, NgramState& state) const;
  // i64 [tokens, heads] -> [tokens, dim].
  at::Tensor look_up(const at::Tensor& rows) const;
  NgramSpec spec_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> table_;  // shards as they are stored, [rows, dim / heads]
  std::vector<int64_t> ends_;      // of each shard, in rows of the whole table
  at::Tensor multipliers_;         // i64 [order]
  at::Tensor offsets_, sizes_;     // i64 [heads]
  at::Tensor key_, value_;         // [count · hidden, dim], [hidden, dim]
  at::Tensor conv_;                // f32 [count · hidden, kernel]
  Norm key_norm_, query_norm_, conv_norm_;
};

}  // namespace gramian
