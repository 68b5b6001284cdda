#include "models/blocks/attention.h"

#include <algorithm>

#include "models/kv_state.h"
#include "tensor/one_query.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// The norm of `heads` heads, `name` being q or k.
Norm load_qk_norm(const Weights& weights, const std::string& prefix, const std::string& name, int64_t heads,
                  const AttentionSpec& spec) {
  const std::string module = prefix + name + "_norm";
  switch (spec.qk_norm_kind) {
    case QkNormKind::head:
      return load_norm(weights, module, {spec.head_dim}, *spec.qk_norm);
    case QkNormKind::all_heads:
      return load_norm(weights, module, {heads * spec.head_dim}, *spec.qk_norm);
    case QkNormKind::turned:
      return {tensor::full({1}, 1.0, at::kFloat), *spec.qk_norm};
    case QkNormKind::own_head: {
      Norm norm = load_norm(weights, module, {heads, spec.head_dim}, *spec.qk_norm);
      if (norm.weight.defined()) norm.weight = norm.weight.unsqueeze(1);
      return norm;
    }
    case QkNormKind::own_head_listed:
      break;
  }
  std::vector<at::Tensor> each;
  for (int64_t h = 0; h < heads; ++h) {
    each.push_back(
        load_norm(weights, str(prefix, name, "_layernorm.norms.", h), {spec.head_dim}, *spec.qk_norm).weight);
  }
  if (weights.is_survey()) return {};
  return {tensor::cat(each, 0).view({heads, 1, spec.head_dim}), *spec.qk_norm};
}

}  // namespace

Attention::Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec)
    : spec_(spec) {
  const int64_t q = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  const auto load = [&](const std::string& name, int64_t out) {
    return weights.linear(prefix + name, spec.hidden, out, spec.qkv_bias);
  };
  if (spec.fused) {
    qkv_ = {load("qkv_proj", q + 2 * kv)};
  } else {
    qkv_ = {load("q_proj", spec.gated ? 2 * q : q), load("k_proj", kv), load("v_proj", kv)};
  }
  o_ = weights.linear(prefix + "o_proj", q, spec.hidden, spec.o_bias);
  if (spec.qk_norm) {
    q_norm_ = load_qk_norm(weights, prefix, "q", spec.heads, spec);
    k_norm_ = load_qk_norm(weights, prefix, "k", spec.kv_heads, spec);
  }
  if (spec.sinks) sinks_ = weights.tensor(prefix + "sinks", {spec.heads});
  if (sinks_.defined()) sinks_ = sinks_.to(at::kFloat);
  if (spec.index) indexer_ = load_key_indexer(weights, prefix + "indexer.", *spec.index);
}

Task<at::Tensor> Attention::forward(at::Tensor x, const BatchContext& batch) {
  at::Tensor index;
  if (indexer_) index = indexer_->project(x);
  std::vector<at::Tensor> projected = co_await linears(std::move(x), qkv_);
  Qkv parts = split(projected);
  at::Tensor closed;
  if (indexer_) closed = indexer_->choose(index, {}, batch);
  at::Tensor mixed = attend(parts, closed, batch);
  index.reset();
  closed.reset();
  if (spec_.gated) mixed.mul_(tensor::sigmoid(parts.gate));
  parts = {};
  projected.clear();
  std::vector<at::Tensor> out = co_await linears(std::move(mixed), o_);
  co_return std::move(out[0]);
}

Attention::Qkv Attention::split(const std::vector<at::Tensor>& projected) const {
  Qkv found;
  if (spec_.fused) {
    const int64_t q = spec_.heads * spec_.head_dim, kv = spec_.kv_heads * spec_.head_dim;
    found = {projected[0].narrow(1, 0, q), projected[0].narrow(1, q, kv), projected[0].narrow(1, q + kv, kv)};
  } else {
    found = {projected[0], projected[1], projected[2]};
  }
  if (spec_.gated) {
    const at::Tensor both = found.q.view({found.q.size(0), spec_.heads, 2, spec_.head_dim});
    found.q = both.select(2, 0).reshape({found.q.size(0), -1});
    found.gate = both.select(2, 1).reshape({found.q.size(0), -1});
  }
  if (spec_.qk_norm_kind == QkNormKind::all_heads) {
    found.q = q_norm_(found.q);
    found.k = k_norm_(found.k);
  }
  return found;
}

at::Tensor Attention::attend(const Qkv& all, const at::Tensor& closed, const BatchContext& batch) const {
  at::Tensor out = tensor::empty({batch.tokens, spec_.heads * spec_.head_dim}, all.q.scalar_type());
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const auto heads = [&](const at::Tensor& x, int64_t count) {
      return x.narrow(0, run.begin, run.rows * run.length)
          .view({run.rows, run.length, count, spec_.head_dim})
          .transpose(1, 2);
    };
    Qkv part =
        positioned({heads(all.q, spec_.heads), heads(all.k, spec_.kv_heads), heads(all.v, spec_.kv_heads)},
                   run, spec_.rope ? &batch.rope[*spec_.rope][i] : nullptr);
    if (!batch.states.empty()) {
      auto* state = dynamic_cast<KvState*>(batch.states[i]);
      GRAMIAN_CHECK(state != nullptr, "another layer's state");
      std::tie(part.k, part.v) = state->append(part.k, part.v);
    }
    if (const at::Tensor one = single(part, run, closed, batch.pool); one.defined()) {
      if (batch.runs.size() == 1) return one;
      out.narrow(0, run.begin, run.rows).copy_(one);
      continue;
    }
    const at::Tensor left_out = closed.defined() ? closed_keys(closed, run, spec_.index->pool) : closed;
    heads(out, spec_.heads).copy_(visible(part, run.past + run.length, left_out));
  }
  return out;
}

at::Tensor Attention::single(const Qkv& heads, const RowRun& run, const at::Tensor& closed,
                             ThreadPool* pool) const {
  if (run.length != 1 || closed.defined()) return {};
  // In a chunk the token sees what came in it.
  const int64_t window = spec_.chunk > 0 ? run.past % spec_.chunk + 1 : spec_.window;
  const at::Tensor out = tensor::one_query_attention(
      heads.q, heads.k, heads.v,
      {.scale = spec_.scale, .window = window, .softcap = spec_.softcap, .sinks = sinks_}, pool);
  return out.defined() ? out.view({run.rows, spec_.heads * spec_.head_dim}) : out;
}

Attention::Qkv Attention::positioned(const Qkv& heads, const RowRun& run, const RopeTable* rope) const {
  Qkv found = heads;
  const auto norm = [&] {
    found.q = q_norm_(found.q);
    found.k = k_norm_(found.k);
  };
  const bool behind = spec_.qk_norm_kind == QkNormKind::turned;
  if (!behind && spec_.qk_norm_kind != QkNormKind::all_heads) norm();
  if (rope != nullptr) {
    found.q = apply_rope(found.q, *rope);
    found.k = apply_rope(found.k, *rope);
  }
  if (behind) norm();
  if (spec_.position_scale) {
    const at::Tensor position = tensor::arange(run.length, at::kFloat).add_(run.past + 1);
    const at::Tensor scale = position.div_(spec_.position_scale->floor)
                                 .floor_()
                                 .log1p_()
                                 .mul_(spec_.position_scale->scale)
                                 .add_(1.0);
    found.q = found.q.mul(scale.unsqueeze(1)).to(found.q.scalar_type());
  }
  return found;
}

at::Tensor Attention::visible(const Qkv& heads, int64_t end, const at::Tensor& closed) const {
  const tensor::AttentionRule rule{.scale = spec_.scale,
                                   .window = spec_.window,
                                   .softcap = spec_.softcap,
                                   .sinks = sinks_,
                                   .closed = closed};
  if (spec_.chunk == 0) return tensor::causal_attention(heads.q, heads.k, heads.v, rule);
  // Each chunk is a row of its own.
  const int64_t first_query = end - heads.q.size(2), first_key = end - heads.k.size(2);
  std::vector<at::Tensor> parts;
  for (int64_t begin = first_query, next = 0; begin < end; begin = next) {
    const int64_t chunk = begin / spec_.chunk * spec_.chunk;
    next = std::min(chunk + spec_.chunk, end);
    const auto keys = [&](const at::Tensor& x) { return x.narrow(2, chunk - first_key, next - chunk); };
    parts.push_back(tensor::causal_attention(heads.q.narrow(2, begin - first_query, next - begin),
                                             keys(heads.k), keys(heads.v), rule));
  }
  return tensor::cat(parts, 2);
}

std::unique_ptr<MixerState> Attention::make_state(int64_t tokens_max) const {
  if (indexer_) return std::make_unique<IndexedKvState>(tokens_max);
  // Within a chunk nothing is visible that a window of its length would not show.
  return std::make_unique<KvState>(std::max(spec_.window, spec_.chunk), tokens_max);
}

ModuleTree attention_modules(const std::string& prefix, const AttentionSpec& spec) {
  ModuleTree tree;
  if (spec.fused) {
    tree.push_back({prefix + "qkv_proj"});
  } else {
    tree.push_back({prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"});
  }
  tree.push_back({prefix + "o_proj"});
  return tree;
}

}  // namespace gramian
