#include "models/blocks/latent_attention.h"

#include "models/kv_state.h"
#include "tensor/ops.h"

namespace gramian {

LatentAttention::LatentAttention(const Weights& weights, const std::string& prefix,
                                 const LatentAttentionSpec& spec)
    : spec_(spec) {
  const int64_t q = spec.heads * spec.head_dim();
  if (spec.q_rank > 0) {
    q_ = weights.linear(prefix + "q_a_proj", spec.hidden, spec.q_rank, spec.bias);
    q_norm_ = load_norm(weights, prefix + "q_a_layernorm", {spec.q_rank}, spec.norm);
    q_b_ = weights.linear(prefix + "q_b_proj", spec.q_rank, q, false);
  } else {
    q_ = weights.linear(prefix + "q_proj", spec.hidden, q, false);
  }
  kv_a_ = weights.linear(prefix + "kv_a_proj_with_mqa", spec.hidden, spec.kv_rank + spec.rope_dim, spec.bias);
  kv_norm_ = load_norm(weights, prefix + "kv_a_layernorm", {spec.kv_rank}, spec.norm);
  kv_b_ =
      weights.linear(prefix + "kv_b_proj", spec.kv_rank, spec.heads * (spec.nope_dim + spec.v_dim), false);
  o_ = weights.linear(prefix + "o_proj", spec.heads * spec.v_dim, spec.hidden, spec.bias);
  if (spec.index && !spec.shares_index)
    indexer_ = load_key_indexer(weights, prefix + "indexer.", *spec.index);
}

Task<at::Tensor> LatentAttention::forward(at::Tensor x, const BatchContext& batch) {
  at::Tensor index, closed;
  if (indexer_) index = indexer_->project(x);
  if (spec_.shares_index && batch.closed != nullptr) closed = *batch.closed;
  std::vector<at::Tensor> down = co_await linears(std::move(x), q_, kv_a_);
  at::Tensor q = std::move(down[0]);
  if (spec_.q_rank > 0) {
    at::Tensor latent = q_norm_(q);
    q.reset();
    if (indexer_) closed = indexer_->choose(index, latent, batch);
    index.reset();
    std::vector<at::Tensor> up = co_await linears(std::move(latent), q_b_);
    q = std::move(up[0]);
  }
  if (indexer_ && batch.closed != nullptr) *batch.closed = closed;
  at::Tensor latent = kv_norm_(down[1].narrow(1, 0, spec_.kv_rank));
  std::vector<at::Tensor> kv = co_await linears(std::move(latent), kv_b_);
  at::Tensor mixed = attend(q, kv[0], down[1].narrow(1, spec_.kv_rank, spec_.rope_dim), closed, batch);
  closed.reset();
  down.clear();
  kv.clear();
  q.reset();
  std::vector<at::Tensor> out = co_await linears(std::move(mixed), o_);
  co_return std::move(out[0]);
}

at::Tensor LatentAttention::attend(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& rope_key,
                                   const at::Tensor& closed, const BatchContext& batch) const {
  const int64_t nope = spec_.nope_dim, turning = spec_.rope_dim;
  at::Tensor out = tensor::empty({batch.tokens, spec_.heads * spec_.v_dim}, q.scalar_type());
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const auto heads = [&](const at::Tensor& x, int64_t count, int64_t size) {
      return x.narrow(0, run.begin, run.rows * run.length)
          .reshape({run.rows, run.length, count, size})
          .transpose(1, 2);
    };
    const auto turned = [&](const at::Tensor& x) {
      return spec_.rope ? apply_rope(x, batch.rope[*spec_.rope][i]) : x;
    };
    const at::Tensor query = heads(q, spec_.heads, spec_.head_dim());
    const at::Tensor key_value = heads(kv, spec_.heads, nope + spec_.v_dim);
    const at::Tensor shared = turned(heads(rope_key, 1, turning));
    const at::Tensor full_q =
        tensor::cat({query.narrow(-1, 0, nope), turned(query.narrow(-1, nope, turning))}, -1);
    at::Tensor k = tensor::cat(
        {key_value.narrow(-1, 0, nope), shared.expand({run.rows, spec_.heads, run.length, turning})}, -1);
    at::Tensor v = key_value.narrow(-1, nope, spec_.v_dim);
    if (!batch.states.empty()) {
      auto* state = dynamic_cast<KvState*>(batch.states[i]);
      GRAMIAN_CHECK(state != nullptr, "another layer's state");
      std::tie(k, v) = state->append(k, v);
    }
    heads(out, spec_.heads, spec_.v_dim)
        .copy_(tensor::causal_attention(
            full_q, k, v,
            {.scale = spec_.scale,
             .closed = closed.defined() ? closed_keys(closed, run, spec_.index->pool) : closed}));
  }
  return out;
}

std::unique_ptr<MixerState> LatentAttention::make_state(int64_t tokens_max) const {
  if (indexer_) return std::make_unique<IndexedKvState>(tokens_max);
  return std::make_unique<KvState>(0, tokens_max);
}

ModuleTree latent_attention_modules(const std::string& prefix, const LatentAttentionSpec& spec) {
  ModuleTree tree;
  if (spec.q_rank > 0) {
    tree = {{prefix + "q_a_proj", prefix + "kv_a_proj_with_mqa"}, {prefix + "q_b_proj"}};
  } else {
    tree = {{prefix + "q_proj", prefix + "kv_a_proj_with_mqa"}};
  }
  tree.push_back({prefix + "kv_b_proj"});
  tree.push_back({prefix + "o_proj"});
  return tree;
}

}  // namespace gramian
