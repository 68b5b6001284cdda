// Multi-head latent attention against formulas in double; whole rows, several rows and rows that grow.
#include "models/blocks/latent_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kHidden = 16, kHeads = 3, kTokens = 14;

class LatentAttentionTest : public testing::TestWithParam<int64_t> {
 protected:
  LatentAttentionTest() {
    spec_ = {.hidden = kHidden,
             .heads = kHeads,
             .q_rank = GetParam(),
             .kv_rank = 10,
             .nope_dim = 6,
             .rope_dim = 4,
             .v_dim = 5,
             .scale = 0.3};
    tiny_.tensors.clear();
    if (spec_.q_rank > 0) {
      matrix("q_a_proj", spec_.q_rank, kHidden, 1);
      matrix("q_b_proj", kHeads * spec_.head_dim(), spec_.q_rank, 2);
      tiny_.tensors["m.q_a_layernorm.weight"] = random_normal({spec_.q_rank}, 3).mul(0.3).add(1);
    } else {
      matrix("q_proj", kHeads * spec_.head_dim(), kHidden, 1);
    }
    matrix("kv_a_proj_with_mqa", spec_.kv_rank + spec_.rope_dim, kHidden, 4);
    matrix("kv_b_proj", kHeads * (spec_.nope_dim + spec_.v_dim), spec_.kv_rank, 5);
    matrix("o_proj", kHidden, kHeads * spec_.v_dim, 6);
    tiny_.tensors["m.kv_a_layernorm.weight"] = random_normal({spec_.kv_rank}, 7).mul(0.3).add(1);
    x_ = random_normal({kTokens, kHidden}, 8);
  }
  void matrix(const std::string& name, int64_t out, int64_t in, uint32_t seed) {
    tiny_.tensors["m." + name + ".weight"] = random_normal({out, in}, seed).mul(0.5);
  }

  LatentAttention block() {
    return {Weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {}), "m.", spec_};
  }
  at::Tensor output(const std::vector<int64_t>& lengths = {kTokens}) {
    LatentAttention attention = block();
    const BatchContext context = make_batch_context(lengths, ropes_);
    return run(attention.forward(x_, context));
  }

  at::Tensor naive(const at::Tensor& x) const {
    const auto linear = [&](const at::Tensor& in, const std::string& name) {
      return in.matmul(tiny_.tensors.at("m." + name + ".weight").to(at::kDouble).t());
    };
    const auto normed = [&](const at::Tensor& in, const std::string& name) {
      return in.div(in.square().mean(-1, true).add(1e-6).sqrt())
          .mul(tiny_.tensors.at("m." + name + ".weight").to(at::kDouble));
    };
    const int64_t length = x.size(0), nope = spec_.nope_dim, rope = spec_.rope_dim;
    const auto turned = [&](const at::Tensor& heads) {  // [length, rope]
      if (!spec_.rope) return heads;
      const RopeTable table = rope_table(ropes_[0], length);
      return apply_rope(heads.unsqueeze(0).unsqueeze(0).to(at::kFloat), table)[0][0].to(at::kDouble);
    };
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor q = spec_.q_rank > 0
                             ? linear(normed(linear(wide, "q_a_proj"), "q_a_layernorm"), "q_b_proj")
                             : linear(wide, "q_proj");
    const at::Tensor down = linear(wide, "kv_a_proj_with_mqa");
    const at::Tensor kv = linear(normed(down.narrow(1, 0, spec_.kv_rank), "kv_a_layernorm"), "kv_b_proj");
    const at::Tensor shared = turned(down.narrow(1, spec_.kv_rank, rope));
    const at::Tensor future = tensor::full({length, length}, 1.0, at::kDouble).triu(1).to(at::kBool);
    std::vector<at::Tensor> mixed;
    for (int64_t h = 0; h < kHeads; ++h) {
      const at::Tensor query = q.narrow(1, h * (nope + rope), nope + rope);
      const at::Tensor own = kv.narrow(1, h * (nope + spec_.v_dim), nope + spec_.v_dim);
      const at::Tensor scores = query.narrow(1, 0, nope)
                                    .matmul(own.narrow(1, 0, nope).t())
                                    .add(turned(query.narrow(1, nope, rope)).matmul(shared.t()));
      const at::Tensor weights = scores.mul(spec_.scale).masked_fill(future, -1e30).softmax(-1);
      mixed.push_back(weights.matmul(own.narrow(1, nope, spec_.v_dim)));
    }
    return linear(tensor::cat(mixed, 1), "o_proj");
  }

  LatentAttentionSpec spec_;
  TinyModel tiny_;
  at::Tensor x_;
  std::vector<RopeSpec> ropes_{{.rotary_dim = 4}};
};

TEST_P(LatentAttentionTest, EqualsTheFormula) {
  EXPECT_LT(max_difference(output(), naive(x_)), 2e-5);
  ropes_[0].pairs = true;
  EXPECT_LT(max_difference(output(), naive(x_)), 2e-5);
  spec_.rope = std::nullopt;
  EXPECT_LT(max_difference(output(), naive(x_)), 2e-5);
}

TEST_P(LatentAttentionTest, RowsOfSeveralLengths) {
  const at::Tensor found = output({4, 4, 1, 5});
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 4}, {4, 4}, {8, 1}, {9, 5}}) {
    EXPECT_LT(max_difference(found.narrow(0, begin, length), naive(x_.narrow(0, begin, length))), 2e-5)
        << begin;
  }
}

TEST_P(LatentAttentionTest, RowsThatGrow) {
  LatentAttention attention = block();
  const auto state = attention.make_state(kTokens);
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0, count = 6; begin < kTokens; begin += count, count = 1) {
    BatchContext context = make_continuation({.begin = begin, .length = count, .whole = kTokens}, ropes_);
    context.states = {state.get()};
    parts.push_back(run(attention.forward(x_.narrow(0, begin, count), context)));
  }
  EXPECT_LT(max_difference(tensor::cat(parts, 0), naive(x_)), 2e-5);
  // Keys and values of each head.
  EXPECT_EQ(state->bytes(), kTokens * kHeads * (spec_.head_dim() + spec_.v_dim) * 4);
}

TEST_P(LatentAttentionTest, PausesAsTheModuleTreeSays) {
  LatentAttention attention = block();
  const BatchContext context = make_batch_context({kTokens}, ropes_);
  Execution execution(attention.forward(x_, context));
  ModuleTree seen;
  while (Pause* pause = execution.advance()) {
    auto& group = seen.emplace_back();
    for (const Linear* linear : pause->modules) group.push_back(linear->name);
    multiply(*pause);
  }
  EXPECT_EQ(seen, latent_attention_modules("m.", spec_));
  EXPECT_EQ(seen[0].back(), "m.kv_a_proj_with_mqa");
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutALatentOfQ, LatentAttentionTest, testing::Values(7, 0));

}  // namespace
}  // namespace gramian
