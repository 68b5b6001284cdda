// Grouped-query softmax attention (Ainslie et al. 2023).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/key_indexer.h"
#include "models/blocks/mixer.h"
#include "models/blocks/norm.h"

namespace gramian {

// What a norm of q and k runs over, and what its weight is.
enum class QkNormKind {
  head,             // each head before it turns, one weight [head_dim] for all: q_norm, k_norm (qwen3)
  own_head,         // the same, a weight for each head: q_norm, k_norm [heads, head_dim] (cohere)
  own_head_listed,  // the same, stored head by head: q_layernorm.norms.0, k_layernorm.norms.0 ... (stablelm)
  all_heads,        // all heads at once, before they are split: q_norm, k_norm [heads · head_dim] (olmo2)
  turned,           // each head behind its rotary positions, without a weight (llama4)
};

// Of a query at position p in a long row: q · (1 + scale · ln(1 + ⌊(p + 1) / floor⌋)) (Nakanishi 2025; llama4).
struct PositionScale {
  double scale = 0;
  double floor = 1;
};

struct AttentionSpec {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // heads % kv_heads == 0
  int64_t head_dim = 0;
  bool fused = false;  // one module qkv_proj, rows of q, then k, then v
  bool gated =
      false;  // q_proj holds for each head q, then a gate: what the head gives is multiplied by sigmoid(gate)
  bool qkv_bias = false;
  bool o_bias = false;
  std::optional<NormSpec> qk_norm = {};
  QkNormKind qk_norm_kind = QkNormKind::head;
  double scale = 1.0;              // of q·k
  double softcap = 0;              // scores become softcap · tanh(score / softcap); 0: none
  bool sinks = false;              // `sinks` [heads]: a score that joins each softmax and has no value
  std::optional<size_t> rope = 0;  // index into DecoderSpec::ropes; none: no position coding
  // Key j is visible to query i when j <= i and ...
  int64_t window = 0;  // i - window < j; 0: any
  int64_t chunk = 0;   // ⌊i / chunk⌋ == ⌊j / chunk⌋; 0: any. Not both.
  std::optional<PositionScale> position_scale = {};
  std::optional<KeyIndexerSpec> index = {};  // under `indexer`; not beside a window or chunks
};

// Pauses: {q, k, v} or {qkv}, {o}. Its state is keys and values, and what an indexer keeps.
class Attention final : public Mixer {
 public:
  Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  struct Qkv {
    at::Tensor q, k, v;    // [tokens, heads · d], in attend_run [rows, heads, length, d]
    at::Tensor gate = {};  // [tokens, heads · d] or undefined
  };
  Qkv split(const std::vector<at::Tensor>& projected) const;
  // `closed` as KeyIndexer::choose gives it. -> [tokens, heads · d].
  at::Tensor attend(const Qkv& all, const at::Tensor& closed, const BatchContext& batch) const;
  Qkv positioned(const Qkv& heads, const RowRun& run, const RopeTable* rope) const;
  // What rows of one token make of their keys and values, [rows, heads · d], by the kernel for it; undefined where it does not serve.
  at::Tensor single(const Qkv& heads, const RowRun& run, const at::Tensor& closed, ThreadPool* pool) const;
  // q [rows, heads, L, d], k and v [rows, kv_heads, S, d], the last of them at position `end` - 1 of its row; `closed` as
  // tensor::AttentionRule has it.
  at::Tensor visible(const Qkv& heads, int64_t end, const at::Tensor& closed) const;
  AttentionSpec spec_;
  std::vector<Linear> qkv_;  // three, or all as one
  Linear o_;
  Norm q_norm_, k_norm_;
  at::Tensor sinks_;  // f32 [heads] or undefined
  std::unique_ptr<KeyIndexer> indexer_;
};

ModuleTree attention_modules(const std::string& prefix, const AttentionSpec& spec);

}  // namespace gramian
