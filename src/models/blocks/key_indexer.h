// Attention that reads a part of its keys, which a small indexer picks for each query (DeepSeek-V3.2's sparse attention, over
// pools of keys as GLM 5 and Qwen 4 have them). Keys lie in pools of `pool` neighbours from the row's first token on. Of the
// pools that end at or before its own position a query reads the `pools_max` that score highest, and always the keys behind
// the last of them:
//   score(query, pool) = Σ_h w_h · relu(dim^-1/2 · q_h · k_pool)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/batch.h"
#include "models/blocks/norm.h"
#include "models/kv_state.h"
#include "models/weights.h"

namespace gramian {

struct KeyIndexerSpec {
  enum class Kind {
    // k_pool = Σ softmax(gate + place) ∘ k over the pool's tokens, channel by channel; q comes from the latent of q, w from x
    // (GLM 5: wq_b, wk, k_norm, weights_proj, index_kpool_compress_gate, index_kpool_compress_ape).
    weighted,
    // k_pool = the norm of the pool's mean, turned as its first token; w = 1 (Qwen 4: index_qk_proj, q_layernorm,
    // k_layernorm).
    mean,
  };
  Kind kind = Kind::weighted;
  int64_t hidden = 0;
  int64_t latent = 0;  // weighted: width of q's latent
  int64_t heads = 0;
  int64_t dim = 0;  // of a head
  int64_t pool = 0;
  int64_t pools_max = 0;
  NormSpec norm = {};  // of keys; `mean`: of q too
  size_t rope = 0;     // mean: index into DecoderSpec::ropes
};

// Keys and values, and what an indexer keeps of them.
class IndexedKvState final : public KvState {
 public:
  explicit IndexedKvState(int64_t most) : KvState(0, most), tokens_max(most) {}
  int64_t tokens_max;  // as KvState has it
  at::Tensor pools;    // f32 [rows, whole pools, dim]; undefined before the first
  at::Tensor rest;     // f32 [rows, tokens behind them, what a pool is made of]
  int64_t bytes() const override;
};

// Stays as it is in a quantized model.
class KeyIndexer {
 public:
  explicit KeyIndexer(const KeyIndexerSpec& spec) : spec_(spec) {}
  virtual ~KeyIndexer() = default;
  // What choose() needs of the layer's input x [tokens, hidden].
  virtual at::Tensor project(const at::Tensor& x) const = 0;
  // -> bool [tokens, pools of the longest row]: the pools that a token leaves out of those that it could read; undefined where
  // every token reads all of its. Goes on with the batch's states (IndexedKvState), if it has any.
  at::Tensor choose(const at::Tensor& projected, const at::Tensor& latent, const BatchContext& batch) const;

 protected:
  struct Parts {
    at::Tensor q;        // f32 [rows, L, heads, dim]
    at::Tensor weights;  // f32 [rows, L, heads] or undefined: all 1
    at::Tensor tokens;   // f32 [rows, L, any]: what a pool is made of
  };
  virtual Parts parts(const at::Tensor& projected, const at::Tensor& latent, const BatchContext& batch,
                      size_t run) const = 0;
  // [rows, pools, pool, any] -> f32 [rows, pools, dim].
  virtual at::Tensor pooled(const at::Tensor& tokens) const = 0;
  KeyIndexerSpec spec_;

 private:
  at::Tensor keys(const at::Tensor& tokens, IndexedKvState* state) const;
  at::Tensor scores(const Parts& parts, const at::Tensor& keys) const;
};

std::unique_ptr<KeyIndexer> load_key_indexer(const Weights& weights, const std::string& prefix,
                                             const KeyIndexerSpec& spec);

// scores f32 [rows, L, P] of the first P pools, queries from position `past` on -> bool [rows, L, P]. Which of equal scores
// count is up to LibTorch's topk, whose choice depends on how many scores there are: as many as the pools that the query could
// read, or `places` if these are more.
at::Tensor closed_pools(const at::Tensor& scores, int64_t past, int64_t places, const KeyIndexerSpec& spec);
// A run's part of what choose() gave, as tensor::AttentionRule::closed wants it: [rows, L, past + L].
at::Tensor closed_keys(const at::Tensor& closed, const RowRun& run, int64_t pool);

}  // namespace gramian
