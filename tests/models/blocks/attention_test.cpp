// What the families change in attention, against formulas in double; whole rows and rows that grow.
#include "models/blocks/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kHidden = 16, kHeads = 4, kKvHeads = 2, kDim = 8, kTokens = 19;

class AttentionTest : public testing::Test {
 protected:
  AttentionTest() {
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, uint32_t seed) {
      tiny_.tensors["m." + name + ".weight"] = random_normal({out, in}, seed).mul(0.5);
    };
    tiny_.tensors.clear();
    matrix("q_proj", kHeads * kDim, kHidden, 1);
    matrix("k_proj", kKvHeads * kDim, kHidden, 2);
    matrix("v_proj", kKvHeads * kDim, kHidden, 3);
    matrix("o_proj", kHidden, kHeads * kDim, 4);
    x_ = random_normal({kTokens, kHidden}, 5);
    spec_ = {.hidden = kHidden, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.4};
  }

  at::Tensor weight(const std::string& name) const { return tiny_.tensors.at("m." + name).to(at::kDouble); }
  Attention block() {
    return {Weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {}), "m.", spec_};
  }

  at::Tensor output() {
    Attention attention = block();
    const BatchContext context = make_batch_context({kTokens}, ropes_);
    return run(attention.forward(x_, context));
  }

  // The same row in pieces.
  at::Tensor growing() {
    Attention attention = block();
    const auto state = attention.make_state(kTokens);
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0, count = 5; begin < kTokens; begin += count, count = begin < 10 ? 3 : 1) {
      count = std::min(count, kTokens - begin);
      BatchContext context = make_continuation({.begin = begin, .length = count, .whole = kTokens}, ropes_);
      context.states = {state.get()};
      parts.push_back(run(attention.forward(x_.narrow(0, begin, count), context)));
    }
    return tensor::cat(parts, 0);
  }

  // Head by head; the functions change what is usual.
  using Change = std::function<at::Tensor(const at::Tensor& heads, const char* which)>;
  at::Tensor naive(const Change& before = {}, const Change& behind = {}, const at::Tensor& hidden = {},
                   const at::Tensor& sinks = {}) const {
    const auto project = [&](const char* name, int64_t count) {
      return x_.to(at::kDouble).matmul(weight(str(name, "_proj.weight")).t()).view({kTokens, count, kDim});
    };
    const auto turned = [&](const at::Tensor& heads) {
      if (!spec_.rope) return heads;
      const RopeTable table = rope_table(ropes_[0], kTokens);
      return apply_rope(heads.transpose(0, 1).unsqueeze(0).to(at::kFloat), table)[0].transpose(0, 1).to(
          at::kDouble);
    };
    const auto prepared = [&](const char* name, int64_t count) {
      at::Tensor heads = project(name, count);
      if (before) heads = before(heads, name);
      heads = turned(heads);
      return behind ? behind(heads, name) : heads;
    };
    const at::Tensor q = prepared("q", kHeads), k = prepared("k", kKvHeads), v = project("v", kKvHeads);
    const at::Tensor future = tensor::full({kTokens, kTokens}, 1.0, at::kDouble).triu(1).to(at::kBool);
    std::vector<at::Tensor> mixed;
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t shared = h / (kHeads / kKvHeads);
      at::Tensor scores = q.select(1, h).matmul(k.select(1, shared).t()).mul(spec_.scale);
      scores = scores.masked_fill(future, -1e30);
      if (hidden.defined()) scores = scores.masked_fill(hidden, -1e30);
      at::Tensor sum = scores.exp().sum(-1, true);
      if (sinks.defined()) sum = sum.add(sinks[h].to(at::kDouble).exp());
      mixed.push_back(scores.exp().div(sum).matmul(v.select(1, shared)));
    }
    return tensor::cat(mixed, 1).matmul(weight("o_proj.weight").t());
  }

  void expect(const at::Tensor& expected) {
    EXPECT_LT(max_difference(output(), expected), 2e-5);
    EXPECT_LT(max_difference(growing(), expected), 2e-5);
  }

  TinyModel tiny_;
  at::Tensor x_;
  AttentionSpec spec_;
  std::vector<RopeSpec> ropes_{{.rotary_dim = kDim}};
};

at::Tensor rms(const at::Tensor& x) { return x.div(x.square().mean(-1, true).add(1e-6).sqrt()); }

TEST_F(AttentionTest, Plain) { expect(naive()); }

TEST_F(AttentionTest, PairsTurnTogether) {
  const at::Tensor halves = output();
  ropes_[0].pairs = true;
  expect(naive());
  EXPECT_GT(max_difference(output(), halves), 0.01);
}

TEST_F(AttentionTest, OneModuleForAllThree) {
  const at::Tensor expected = naive();
  tiny_.tensors["m.qkv_proj.weight"] =
      tensor::cat({tiny_.tensors.at("m.q_proj.weight"), tiny_.tensors.at("m.k_proj.weight"),
                   tiny_.tensors.at("m.v_proj.weight")},
                  0);
  for (const char* name : {"q", "k", "v"}) tiny_.tensors.erase(str("m.", name, "_proj.weight"));
  spec_.fused = true;
  EXPECT_LT(max_difference(output(), expected), 2e-5);
  EXPECT_LT(max_difference(growing(), expected), 2e-5);
}

TEST_F(AttentionTest, NormsOfHeads) {
  const auto add = [&](const std::string& name, at::IntArrayRef shape, uint32_t seed) {
    tiny_.tensors["m." + name + ".weight"] = random_normal(shape, seed).mul(0.3).add(1);
  };
  const auto named = [](const char* which) { return str(which, "_norm.weight"); };
  spec_.qk_norm = NormSpec{};
  add("q_norm", {kDim}, 11);
  add("k_norm", {kDim}, 12);
  expect(naive([&](const at::Tensor& x, const char* which) { return rms(x).mul(weight(named(which))); }));

  spec_.qk_norm_kind = QkNormKind::own_head;
  add("q_norm", {kHeads, kDim}, 13);
  add("k_norm", {kKvHeads, kDim}, 14);
  const Change own = [&](const at::Tensor& x, const char* which) { return rms(x).mul(weight(named(which))); };
  expect(naive(own));
  const at::Tensor expected = naive(own);

  spec_.qk_norm_kind = QkNormKind::own_head_listed;
  for (const auto& [name, count] : {std::pair("q", kHeads), {"k", kKvHeads}}) {
    for (int64_t h = 0; h < count; ++h)
      tiny_.tensors[str("m.", name, "_layernorm.norms.", h, ".weight")] =
          tiny_.tensors.at(str("m.", name, "_norm.weight"))[h].clone();
  }
  EXPECT_LT(max_difference(output(), expected), 2e-5);

  spec_.qk_norm_kind = QkNormKind::all_heads;
  add("q_norm", {kHeads * kDim}, 15);
  add("k_norm", {kKvHeads * kDim}, 16);
  expect(naive([&](const at::Tensor& x, const char* which) {
    return rms(x.flatten(1, 2)).mul(weight(named(which))).view(x.sizes());
  }));

  spec_.qk_norm_kind = QkNormKind::turned;
  expect(naive({}, [](const at::Tensor& x, const char*) { return rms(x); }));
}

TEST_F(AttentionTest, Sinks) {
  const at::Tensor without = output(), sinks = random_normal({kHeads}, 21);
  tiny_.tensors["m.sinks"] = sinks;
  spec_.sinks = true;
  expect(naive({}, {}, {}, sinks));
  EXPECT_GT(max_difference(output(), without), 0.01);
}

TEST_F(AttentionTest, ChunksSeeOnlyThemselves) {
  for (const int64_t chunk : {1, 4, 7, 18, 19, 40}) {
    spec_.chunk = chunk;
    const at::Tensor block = tensor::arange(kTokens, at::kLong).floor_divide(chunk);
    const at::Tensor hidden = block.unsqueeze(1).ne(block.unsqueeze(0));
    const at::Tensor expected = naive({}, {}, hidden);
    EXPECT_LT(max_difference(output(), expected), 2e-5) << chunk;
    EXPECT_LT(max_difference(growing(), expected), 2e-5) << chunk;
  }
}

TEST_F(AttentionTest, QueriesOfLongRowsAreSharpened) {
  spec_.rope = std::nullopt;
  spec_.position_scale = {0.5, 4};
  expect(naive({}, [](const at::Tensor& x, const char* which) {
    if (which[0] != 'q') return x;
    std::vector<at::Tensor> rows;
    for (int64_t p = 0; p < x.size(0); ++p)
      rows.push_back(
          x[p].mul(1 + 0.5 * std::log(1.0 + std::floor(static_cast<double>(p + 1) / 4))).unsqueeze(0));
    return tensor::cat(rows, 0);
  }));
}

}  // namespace
}  // namespace gramian
