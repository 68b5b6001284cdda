// Which pools of keys a query leaves out: against the formula in double, in packs of rows, and in rows that grow.
#include "models/blocks/key_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kHidden = 16, kLatent = 10, kHeads = 3, kDim = 6, kPool = 3, kMost = 2, kTokens = 40;

// Of the pools that end at or before a query's position all but the `kMost` best are closed, and no others. Equal scores may
// stand on both sides.
void expect_best_open(const at::Tensor& closed, const at::Tensor& scores) {
  for (int64_t i = 0; i < scores.size(0); ++i) {
    const int64_t whole = (i + 1) / kPool;
    double worst_open = 1e30, best_closed = -1e30;
    int64_t count = 0;
    for (int64_t p = 0; p < closed.size(1); ++p) {
      const bool is_closed = closed[i][p].item<bool>();
      count += is_closed ? 1 : 0;
      if (p >= whole) {
        EXPECT_FALSE(is_closed) << i << " " << p;
      } else if (is_closed) {
        best_closed = std::max(best_closed, scores[i][p].item<double>());
      } else {
        worst_open = std::min(worst_open, scores[i][p].item<double>());
      }
    }
    EXPECT_EQ(count, std::max<int64_t>(0, whole - kMost)) << i;
    EXPECT_LE(best_closed, worst_open + 1e-6) << i;
  }
}

class KeyIndexerTest : public testing::TestWithParam<KeyIndexerSpec::Kind> {
 protected:
  KeyIndexerTest() {
    spec_ = {.kind = GetParam(),
             .hidden = kHidden,
             .latent = kLatent,
             .heads = kHeads,
             .dim = kDim,
             .pool = kPool,
             .pools_max = kMost,
             .norm = {.kind = NormKind::rms_offset}};
    tiny_.tensors.clear();
    if (weighted()) {
      spec_.norm = {.kind = NormKind::layer, .eps = 1e-6, .bias = true};
      put("wk.weight", {kDim, kHidden}, 1);
      put("wq_b.weight", {kHeads * kDim, kLatent}, 2);
      put("weights_proj.weight", {kHeads, kHidden}, 3);
      put("index_kpool_compress_gate", {kDim, kHidden}, 4);
      put("index_kpool_compress_ape", {kPool, kDim}, 5);
      put("k_norm.weight", {kDim}, 6);
      put("k_norm.bias", {kDim}, 7);
    } else {
      put("index_qk_proj.weight", {(kHeads + 1) * kDim, kHidden}, 1);
      put("q_layernorm.weight", {kDim}, 2);
      put("k_layernorm.weight", {kDim}, 3);
    }
    x_ = random_normal({kTokens, kHidden}, 8);
    latent_ = random_normal({kTokens, kLatent}, 9);
  }
  bool weighted() const { return GetParam() == KeyIndexerSpec::Kind::weighted; }
  void put(const std::string& name, const std::vector<int64_t>& shape, uint32_t seed) {
    tiny_.tensors["m." + name] = random_normal(shape, seed).mul(0.5);
  }
  std::unique_ptr<KeyIndexer> block() {
    return load_key_indexer(Weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {}), "m.",
                            spec_);
  }
  at::Tensor stored(const std::string& name) const { return tiny_.tensors.at("m." + name).to(at::kDouble); }
  at::Tensor turned(const at::Tensor& heads) const {  // [heads, L, dim]
    const RopeTable table = rope_table(ropes_[0], heads.size(1));
    return apply_rope(heads.unsqueeze(0).to(at::kFloat), table)[0].to(at::kDouble);
  }

  // Scores [L, whole pools] of the row x [L, hidden].
  at::Tensor naive_scores(const at::Tensor& x, const at::Tensor& latent) const {
    const at::Tensor wide = x.to(at::kDouble);
    const int64_t length = x.size(0), pools = length / kPool;
    const auto rms = [](const at::Tensor& y) { return y.div(y.square().mean(-1, true).add(1e-6).sqrt()); };
    at::Tensor q, w, keys;
    if (weighted()) {
      q = latent.to(at::kDouble).matmul(stored("wq_b.weight").t()).view({length, kHeads, kDim});
      w = wide.matmul(stored("weights_proj.weight").t()).div(std::sqrt(double{kHeads}));
      at::Tensor k = wide.matmul(stored("wk.weight").t());
      k = rms(k.sub(k.mean(-1, true))).mul(stored("k_norm.weight")).add(stored("k_norm.bias"));
      const at::Tensor gate = wide.matmul(stored("index_kpool_compress_gate").t());
      const auto pooled = [&](const at::Tensor& y) {
        return y.narrow(0, 0, pools * kPool).view({pools, kPool, kDim});
      };
      keys = pooled(gate).add(stored("index_kpool_compress_ape")).softmax(1).mul(pooled(k)).sum(1);
    } else {
      const at::Tensor qk = wide.matmul(stored("index_qk_proj.weight").t());
      q = rms(qk.narrow(1, 0, kHeads * kDim).view({length, kHeads, kDim}));
      q = turned(q.mul(stored("q_layernorm.weight").add(1)).transpose(0, 1)).transpose(0, 1);
      w = tensor::full({length, kHeads}, 1.0, at::kDouble);
      const at::Tensor k = qk.narrow(1, kHeads * kDim, kDim).narrow(0, 0, pools * kPool);
      keys = rms(k.view({pools, kPool, kDim}).mean(1)).mul(stored("k_layernorm.weight").add(1));
      // Each stands where its pool begins.
      const at::Tensor places = tensor::zeros({1, pools * kPool, kDim}, at::kDouble);
      places[0].slice(0, 0, pools * kPool, kPool).copy_(keys);
      keys = turned(places)[0].slice(0, 0, pools * kPool, kPool);
    }
    const at::Tensor products =
        q.matmul(keys.t()).div(std::sqrt(double{kDim})).clamp_min(0);  // [L, heads, P]
    return products.mul(w.unsqueeze(-1)).sum(1);
  }

  KeyIndexerSpec spec_;
  TinyModel tiny_;
  at::Tensor x_, latent_;
  std::vector<RopeSpec> ropes_{{.rotary_dim = 4}};
};

TEST_P(KeyIndexerTest, EqualsTheFormulaInEveryRowOfAPack) {
  const auto indexer = block();
  const BatchContext context = make_batch_context({11, 11, 4, 14}, ropes_);
  const at::Tensor closed = indexer->choose(indexer->project(x_), latent_, context);
  ASSERT_EQ(closed.sizes(), at::IntArrayRef({kTokens, 14 / kPool}));
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 11}, {11, 11}, {22, 4}, {26, 14}}) {
    expect_best_open(closed.narrow(0, begin, length),
                     naive_scores(x_.narrow(0, begin, length), latent_.narrow(0, begin, length)));
  }
}

TEST_P(KeyIndexerTest, RowsThatGrow) {
  const auto indexer = block();
  const int64_t whole = 14;
  const at::Tensor all = indexer->choose(indexer->project(x_.narrow(0, 0, whole)),
                                         latent_.narrow(0, 0, whole), make_batch_context({whole}, ropes_));
  IndexedKvState state(whole);
  for (int64_t begin = 0, count = 5; begin < whole; begin += count, count = 1) {
    BatchContext context = make_continuation({.begin = begin, .length = count, .whole = whole}, ropes_);
    context.states = {&state};
    const at::Tensor found = indexer->choose(indexer->project(x_.narrow(0, begin, count)),
                                             latent_.narrow(0, begin, count), context);
    const int64_t pools = (begin + count) / kPool;
    const at::Tensor expected = all.narrow(0, begin, count).narrow(1, 0, pools);
    ASSERT_EQ(found.defined(), pools > kMost) << begin;
    if (found.defined()) {
      EXPECT_TRUE(found.equal(expected)) << begin;
    }
    EXPECT_EQ(state.rest.size(1), (begin + count) % kPool);
  }
  EXPECT_EQ(state.pools.size(1), whole / kPool);
  EXPECT_EQ(state.bytes(), static_cast<int64_t>(state.pools.nbytes() + state.rest.nbytes()));
}

TEST_P(KeyIndexerTest, ShortRowsReadEverything) {
  const auto indexer = block();
  const BatchContext context = make_batch_context({8, 8, 3}, ropes_);  // two whole pools at most
  EXPECT_FALSE(
      indexer->choose(indexer->project(x_.narrow(0, 0, 19)), latent_.narrow(0, 0, 19), context).defined());
}

INSTANTIATE_TEST_SUITE_P(Kinds, KeyIndexerTest,
                         testing::Values(KeyIndexerSpec::Kind::weighted, KeyIndexerSpec::Kind::mean));

TEST(ClosedKeys, APoolIsItsKeysAndWhatFollowsIsOpen) {
  at::Tensor closed = tensor::zeros({8, 3}, at::kBool);
  closed[6][1].fill_(true);
  closed[7][0].fill_(true);
  // The second of two rows of 4 tokens behind 4 earlier ones: 8 keys, two whole pools of 3.
  const at::Tensor found = closed_keys(closed, {.begin = 0, .rows = 2, .length = 4, .past = 4}, 3);
  ASSERT_EQ(found.sizes(), at::IntArrayRef({2, 4, 8}));
  EXPECT_EQ(found.sum().item<int64_t>(), 6);
  EXPECT_TRUE(found[1][2].narrow(0, 3, 3).all().item<bool>());
  EXPECT_TRUE(found[1][3].narrow(0, 0, 3).all().item<bool>());
}

TEST(CausalAttention, LeavesClosedKeysOut) {
  const int64_t rows = 2, heads = 4, length = 5, keys = 9, dim = 8;
  const at::Tensor k = random_normal({rows, 2, keys, dim}, 1), v = random_normal({rows, 2, keys, dim}, 2);
  at::Tensor closed = random_normal({rows, length, keys}, 3).gt(0.3);
  closed.select(2, 0).fill_(false);
  for (const int64_t count : {length, int64_t{1}}) {
    for (const double softcap : {0.0, 2.0}) {
      const at::Tensor q = random_normal({rows, heads, count, dim}, 4);
      const at::Tensor own = closed.narrow(1, 0, count);
      const at::Tensor found =
          tensor::causal_attention(q, k, v, {.scale = 0.4, .softcap = softcap, .closed = own});
      const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
      at::Tensor scores = wide(q).matmul(wide(k).repeat_interleave(2, 1).transpose(2, 3)).mul(0.4);
      if (softcap > 0) scores = scores.div(softcap).tanh().mul(softcap);
      const at::Tensor future =
          tensor::full({count, keys}, 1.0, at::kDouble).triu(keys - count + 1).to(at::kBool);
      const at::Tensor hidden = own.unsqueeze(1).logical_or(future);
      const at::Tensor expected =
          scores.masked_fill(hidden, -1e30).softmax(-1).matmul(wide(v).repeat_interleave(2, 1));
      EXPECT_LT(max_difference(found, expected), 1e-5) << count << " " << softcap;
    }
  }
}

}  // namespace
}  // namespace gramian
