#include "models/blocks/key_indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/ops.h"

namespace gramian {
namespace {

// A run's rows of x [tokens, width]: [rows, L, width].
at::Tensor rows_of(const at::Tensor& x, const RowRun& run) {
  return x.narrow(0, run.begin, run.rows * run.length).view({run.rows, run.length, x.size(1)});
}

class WeightedIndexer final : public KeyIndexer {
 public:
  WeightedIndexer(const Weights& weights, const std::string& prefix, const KeyIndexerSpec& spec)
      : KeyIndexer(spec), norm_(load_norm(weights, prefix + "k_norm", {spec.dim}, spec.norm)) {
    const at::Tensor k = weights.tensor(prefix + "wk.weight", {spec.dim, spec.hidden});
    const at::Tensor gate = weights.tensor(prefix + "index_kpool_compress_gate", {spec.dim, spec.hidden});
    const at::Tensor w = weights.tensor(prefix + "weights_proj.weight", {spec.heads, spec.hidden});
    const at::Tensor place = weights.tensor(prefix + "index_kpool_compress_ape", {spec.pool, spec.dim});
    q_ = weights.tensor(prefix + "wq_b.weight", {spec.heads * spec.dim, spec.latent});
    if (weights.is_survey()) return;
    low_ = tensor::cat({k, gate, w}, 0);
    place_ = place.to(at::kFloat);
  }

  at::Tensor project(const at::Tensor& x) const override { return tensor::linear(x, low_, {}); }

 private:
  Parts parts(const at::Tensor& projected, const at::Tensor& latent, const BatchContext& batch,
              size_t run) const override {
    const RowRun& rows = batch.runs[run];
    const at::Tensor own = rows_of(projected, rows);
    const at::Tensor k = norm_(own.narrow(2, 0, spec_.dim)).to(at::kFloat);
    const at::Tensor gate = own.narrow(2, spec_.dim, spec_.dim).to(at::kFloat);
    const at::Tensor w = own.narrow(2, 2 * spec_.dim, spec_.heads).to(at::kFloat);
    const at::Tensor q =
        tensor::linear(latent.narrow(0, rows.begin, rows.rows * rows.length), q_, {}).to(at::kFloat);
    return {.q = q.view({rows.rows, rows.length, spec_.heads, spec_.dim}),
            .weights = w.mul(1 / std::sqrt(static_cast<double>(spec_.heads))),
            .tokens = tensor::cat({k, gate}, 2)};
  }
  at::Tensor pooled(const at::Tensor& tokens) const override {
    const at::Tensor shares = tokens.narrow(3, spec_.dim, spec_.dim).add(place_).softmax(2);
    return shares.mul(tokens.narrow(3, 0, spec_.dim)).sum(2);
  }

  Norm norm_;
  at::Tensor low_;    // [2 · dim + heads, hidden]: rows of k, of the gates, of the heads' weights
  at::Tensor q_;      // [heads · dim, latent]
  at::Tensor place_;  // f32 [pool, dim]
};

class MeanIndexer final : public KeyIndexer {
 public:
  MeanIndexer(const Weights& weights, const std::string& prefix, const KeyIndexerSpec& spec)
      : KeyIndexer(spec),
        dtype_(weights.dtype()),
        q_norm_(load_norm(weights, prefix + "q_layernorm", {spec.dim}, spec.norm)),
        k_norm_(load_norm(weights, prefix + "k_layernorm", {spec.dim}, spec.norm)),
        qk_(weights.tensor(prefix + "index_qk_proj.weight", {(spec.heads + 1) * spec.dim, spec.hidden})) {}

  at::Tensor project(const at::Tensor& x) const override { return tensor::linear(x, qk_, {}); }

 private:
  Parts parts(const at::Tensor& projected, const at::Tensor&, const BatchContext& batch,
              size_t run) const override {
    const RowRun& rows = batch.runs[run];
    const RopeTable& table = batch.rope[spec_.rope][run];
    const int64_t q = spec_.heads * spec_.dim;
    const at::Tensor own = rows_of(projected, rows);
    const at::Tensor heads =
        q_norm_(own.narrow(2, 0, q).view({rows.rows, rows.length, spec_.heads, spec_.dim}));
    // A pool may begin in an earlier batch than it ends in: each key keeps its turn.
    const auto turn = [&](const at::Tensor& part) {
      return part.unsqueeze(0).expand({rows.rows, rows.length, part.size(1)});
    };
    return {.q = apply_rope(heads.transpose(1, 2), table).transpose(1, 2).to(at::kFloat),
            .weights = {},
            .tokens = tensor::cat(
                {own.narrow(2, q, spec_.dim).to(at::kFloat), turn(table.cos), turn(table.sin)}, 2)};
  }
  at::Tensor pooled(const at::Tensor& tokens) const override {
    const at::Tensor mean = k_norm_(tokens.narrow(3, 0, spec_.dim).mean(2).to(dtype_));
    const int64_t half = (tokens.size(3) - spec_.dim) / 2;
    // The rows of a run stand at the same positions.
    const at::Tensor first = tokens[0].select(1, 0);
    const RopeTable table{first.narrow(1, spec_.dim, half), first.narrow(1, spec_.dim + half, half)};
    return apply_rope(mean.unsqueeze(1), table).squeeze(1).to(at::kFloat);
  }

  at::ScalarType dtype_;
  Norm q_norm_, k_norm_;
  at::Tensor qk_;  // [(heads + 1) · dim, hidden]
};

}  // namespace

int64_t IndexedKvState::bytes() const {
  const auto held = [](const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; };
  return KvState::bytes() + held(pools) + held(rest);
}

at::Tensor KeyIndexer::choose(const at::Tensor& projected, const at::Tensor& latent,
                              const BatchContext& batch) const {
  int64_t most = 0;
  for (const RowRun& run : batch.runs) most = std::max(most, (run.past + run.length) / spec_.pool);
  at::Tensor closed;
  if (most > spec_.pools_max) closed = tensor::zeros({batch.tokens, most}, at::kBool);
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const int64_t pools = (run.past + run.length) / spec_.pool;
    IndexedKvState* state = nullptr;
    if (!batch.states.empty()) {
      state = dynamic_cast<IndexedKvState*>(batch.states[i]);
      GRAMIAN_CHECK(state != nullptr, "another layer's state");
    }
    if (state == nullptr && pools <= spec_.pools_max) continue;
    const Parts own = parts(projected, latent, batch, i);
    const at::Tensor pool_keys = keys(own.tokens, state);
    if (pools <= spec_.pools_max) continue;
    // The references of both kinds differ in how many scores they choose among.
    const int64_t places = spec_.kind == KeyIndexerSpec::Kind::mean ? 0
                           : state != nullptr                       ? state->tokens_max / spec_.pool
                                                                    : pools;
    rows_of(closed, run)
        .narrow(2, 0, pools)
        .copy_(closed_pools(scores(own, pool_keys), run.past, places, spec_));
  }
  return closed;
}

at::Tensor KeyIndexer::keys(const at::Tensor& tokens, IndexedKvState* state) const {
  const bool goes_on = state != nullptr && state->rest.defined();
  const at::Tensor all = goes_on ? tensor::cat({state->rest, tokens}, 1) : tokens;
  const int64_t whole = all.size(1) / spec_.pool;
  at::Tensor fresh;
  if (whole > 0) {
    fresh =
        pooled(all.narrow(1, 0, whole * spec_.pool).reshape({all.size(0), whole, spec_.pool, all.size(2)}));
  }
  if (state == nullptr) return fresh;
  state->rest = all.narrow(1, whole * spec_.pool, all.size(1) - whole * spec_.pool).clone();
  if (fresh.defined()) state->pools = state->pools.defined() ? tensor::cat({state->pools, fresh}, 1) : fresh;
  return state->pools;
}

// One row and one head at a time, so that few products exist at once.
at::Tensor KeyIndexer::scores(const Parts& parts, const at::Tensor& keys) const {
  const int64_t rows = parts.q.size(0), length = parts.q.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(spec_.dim));
  at::Tensor sum = tensor::zeros({rows, length, keys.size(1)}, at::kFloat);
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t h = 0; h < spec_.heads; ++h) {
      const at::Tensor query = parts.q[b].select(1, h).contiguous();
      at::Tensor product = tensor::linear(query, keys[b], {}).mul_(scale).clamp_min_(0);
      if (parts.weights.defined()) product.mul_(parts.weights[b].narrow(1, h, 1));
      sum[b].add_(product);
    }
  }
  return sum;
}

std::unique_ptr<KeyIndexer> load_key_indexer(const Weights& weights, const std::string& prefix,
                                             const KeyIndexerSpec& spec) {
  if (spec.kind == KeyIndexerSpec::Kind::weighted)
    return std::make_unique<WeightedIndexer>(weights, prefix, spec);
  return std::make_unique<MeanIndexer>(weights, prefix, spec);
}

at::Tensor closed_pools(const at::Tensor& scores, int64_t past, int64_t places, const KeyIndexerSpec& spec) {
  const int64_t length = scores.size(1);
  at::Tensor closed = tensor::zeros(scores.sizes(), at::kBool);
  // Queries that could read the same pools.
  for (int64_t begin = 0, next = 0; begin < length; begin = next) {
    const int64_t whole = (past + begin + 1) / spec.pool;
    next = std::min(length, (whole + 1) * spec.pool - 1 - past);
    if (whole <= spec.pools_max) continue;
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(1, begin, next - begin).narrow(2, 0, whole);
    };
    at::Tensor known = tensor::full({scores.size(0), next - begin, std::max(whole, places)},
                                    -std::numeric_limits<double>::infinity(), at::kFloat);
    known.narrow(2, 0, whole).copy_(part(scores));
    const at::Tensor best = std::get<1>(known.topk(spec.pools_max, -1));
    part(closed).fill_(true).scatter_(2, best, 0);
  }
  return closed;
}

at::Tensor closed_keys(const at::Tensor& closed, const RowRun& run, int64_t pool) {
  const int64_t keys = run.past + run.length, pools = std::min(keys / pool, closed.size(1));
  at::Tensor found = tensor::zeros({run.rows, run.length, keys}, at::kBool);
  found.narrow(2, 0, pools * pool).copy_(rows_of(closed, run).narrow(2, 0, pools).repeat_interleave(pool, 2));
  return found;
}

}  // namespace gramian
