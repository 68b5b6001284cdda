// Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values of all heads come from one narrow latent.
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

struct LatentAttentionSpec {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t q_rank = 0;  // 0: q_proj reads the hidden state; else q_a_proj makes a latent for q_b_proj
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  // leading entries of a head of q and k, which never turn
  int64_t rope_dim = 0;  // the others; of k all heads share them
  int64_t v_dim = 0;
  bool bias = false;               // of q_a_proj, kv_a_proj_with_mqa and o_proj
  NormSpec norm = {};              // of the latents
  double scale = 1.0;              // of q·k
  std::optional<size_t> rope = 0;  // index into DecoderSpec::ropes; none: no position coding
  // An indexer under `indexer`, which needs q_rank; or, with `shares_index`, the choice of the last layer that has one.
  std::optional<KeyIndexerSpec> index = {};
  bool shares_index = false;
  int64_t head_dim() const { return nope_dim + rope_dim; }
};

// Pauses: {q_a, kv_a}, {q_b}, {kv_b}, {o}; without q_rank {q, kv_a}, {kv_b}, {o}. Its state is the keys and values of each
// head: expanding the latents anew for each token would multiply all of them with kv_b_proj again.
class LatentAttention final : public Mixer {
 public:
  LatentAttention(const Weights& weights, const std::string& prefix, const LatentAttentionSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  // q [tokens, heads · head_dim], kv [tokens, heads · (nope + v)], rope_key [tokens, rope_dim], `closed` as
  // KeyIndexer::choose gives it -> [tokens, heads · v].
  at::Tensor attend(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& rope_key,
                    const at::Tensor& closed, const BatchContext& batch) const;
  LatentAttentionSpec spec_;
  Linear q_;  // q_a_proj or q_proj
  Linear kv_a_, q_b_, kv_b_, o_;
  Norm q_norm_, kv_norm_;
  std::unique_ptr<KeyIndexer> indexer_;
};

ModuleTree latent_attention_modules(const std::string& prefix, const LatentAttentionSpec& spec);

}  // namespace gramian
