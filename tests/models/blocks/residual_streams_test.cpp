// Residual streams of both kinds against their formulas in double.
#include "models/blocks/residual_streams.h"

#include <gtest/gtest.h>

#include "models/blocks/gated_streams.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kHidden = 6, kCount = 3, kWidth = kHidden * kCount, kTokens = 5, kRank = 4;

at::Tensor sigmoid(const at::Tensor& x) { return x.neg().exp().add(1).reciprocal(); }

class ResidualStreams : public testing::Test {
 protected:
  ResidualStreams() { tiny_.tensors.clear(); }
  at::Tensor put(const std::string& name, const std::vector<int64_t>& shape, uint32_t seed) {
    tiny_.tensors[name] = random_normal(shape, seed).mul(0.5);
    return tiny_.tensors[name].to(at::kDouble);
  }
  Weights weights() { return {std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {}}; }
  TinyModel tiny_;
  const at::Tensor streams_ = random_normal({kTokens, kWidth}, 1),
                   out_ = random_normal({kTokens, kHidden}, 2);
  const at::Tensor wide_ = streams_.to(at::kDouble).view({kTokens, kCount, kHidden});
};

TEST_F(ResidualStreams, HyperConnectionsAreTheFormula) {
  const at::Tensor fn = put("m_fn", {(2 + kCount) * kCount, kWidth}, 3),
                   base = put("m_base", {(2 + kCount) * kCount}, 4), scale = put("m_scale", {3}, 5);
  const StreamSpec spec{.kind = StreamSpec::Kind::hyper,
                        .hidden = kHidden,
                        .count = kCount,
                        .norm = {.eps = 1e-5},
                        .floor = 1e-3,
                        .rounds = 3};
  const StreamPart part = load_stream_reader(weights(), "m", spec)->read(streams_);

  const at::Tensor flat = streams_.to(at::kDouble);
  const at::Tensor made = flat.div(flat.square().mean(-1, true).add(1e-5).sqrt()).matmul(fn.t());
  const auto weight = [&](int64_t which, int64_t begin, int64_t count) {
    return made.narrow(1, begin, count).mul(scale[which]).add(base.narrow(0, begin, count));
  };
  const at::Tensor pre = sigmoid(weight(0, 0, kCount)).add(1e-3);
  const at::Tensor post = sigmoid(weight(1, kCount, kCount)).mul(2);
  at::Tensor comb =
      weight(2, 2 * kCount, kCount * kCount).view({kTokens, kCount, kCount}).softmax(-1).add(1e-3);
  comb = comb.div(comb.sum(1, true).add(1e-3));
  for (int round = 0; round < 2; ++round) {
    comb = comb.div(comb.sum(2, true).add(1e-3));
    comb = comb.div(comb.sum(1, true).add(1e-3));
  }
  EXPECT_LT(max_difference(part.input, pre.unsqueeze(-1).mul(wide_).sum(1)), 1e-5);
  const at::Tensor expected =
      comb.transpose(1, 2).matmul(wide_).add(post.unsqueeze(-1).mul(out_.to(at::kDouble).unsqueeze(1)));
  EXPECT_LT(max_difference(written(streams_, part, out_), expected.view({kTokens, kWidth})), 1e-5);
}

TEST_F(ResidualStreams, GatedStreamsAreTheFormula) {
  const at::Tensor norm = put("m.hc_norm.weight", {kWidth}, 3),
                   down = put("m.input_mix_weight_down.weight", {kRank, kWidth}, 4),
                   up = put("m.input_mix_weight_up.weight", {kWidth, kRank}, 5),
                   inject = put("m.block_inject_weight.weight", {kCount, kWidth}, 6);
  const StreamSpec spec{.kind = StreamSpec::Kind::gated,
                        .hidden = kHidden,
                        .count = kCount,
                        .norm = {.kind = NormKind::rms_offset, .eps = 1e-5},
                        .rank = kRank};
  const StreamPart part = load_stream_reader(weights(), "m", spec)->read(streams_);

  const at::Tensor normed = wide_.div(wide_.square().mean(-1, true).add(1e-5).sqrt())
                                .mul(norm.view({kCount, kHidden}).add(1))
                                .view({kTokens, kWidth});
  const at::Tensor low = normed.matmul(down.t()).div(kCount);
  const at::Tensor open = sigmoid(low.mul(sigmoid(low)).matmul(up.t()));
  const at::Tensor expected = open.mul(normed).view({kTokens, kCount, kHidden}).mean(1);
  EXPECT_LT(max_difference(part.input, expected), 1e-5);
  const at::Tensor write = sigmoid(normed.matmul(inject.t()).div(kCount)).mul(2);
  const at::Tensor next = wide_.add(write.unsqueeze(-1).mul(out_.to(at::kDouble).unsqueeze(1)));
  EXPECT_LT(max_difference(written(streams_, part, out_), next.view({kTokens, kWidth})), 1e-5);

  const StreamGate gate(weights(), "m", spec);
  EXPECT_LT(max_difference(gate.mixed(gate.normed(streams_)), expected), 1e-5);
}

}  // namespace
}  // namespace gramian
